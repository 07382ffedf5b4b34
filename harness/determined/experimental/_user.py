"""Users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class User:
    """A user as the service described it."""

    user_id: int
    username: str
    display_name: str
    admin: bool
    active: bool
    remote: bool

    @classmethod
    def _from_json(cls, data: dict[str, Any]) -> User:
        return cls(
            user_id=data["id"],
            username=data["username"],
            display_name=data.get("displayName") or "",
            admin=data["admin"],
            active=data["active"],
            remote=data.get("remote") or False,
        )
