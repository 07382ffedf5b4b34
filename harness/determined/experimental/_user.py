"""Users."""

from __future__ import annotations

from typing import Any

from determined.common.api import authentication
from determined.common.api.session import Session


class User:
    """A user of the service. Attributes are as of the last :meth:`reload`.

    Attributes:
        user_id, username, display_name: the user's id and names.
        admin, active, remote: whether the user is an administrator, may log in, logs in elsewhere.
    """

    def __init__(self, data: dict[str, Any], session: Session) -> None:
        self._session = session
        self._fill(data)

    def _fill(self, data: dict[str, Any]) -> None:
        self.user_id: int = data["id"]
        self.username: str = data["username"]
        self.display_name: str = data.get("displayName") or ""
        self.admin: bool = data["admin"]
        self.active: bool = data["active"]
        self.remote: bool = data.get("remote") or False

    @classmethod
    def _from_json(cls, data: dict[str, Any], session: Session) -> User:
        return cls(data, session)

    @property
    def _path(self) -> str:
        return f"/api/v1/users/{self.user_id}"

    def reload(self) -> None:
        """Fetches the attributes."""
        self._fill(self._session.get(self._path)["user"])

    def rename(self, new_username: str) -> None:
        """Administrators only."""
        self._patch(username=new_username)

    def activate(self) -> None:
        """Allows the user to log in again."""
        self._patch(active=True)

    def deactivate(self) -> None:
        """Forbids the user to log in."""
        self._patch(active=False)

    def change_display_name(self, display_name: str) -> None:
        """Changes the name that lists show."""
        self._patch(displayName=display_name)

    def change_password(self, new_password: str, *, old_password: str | None = None) -> None:
        """Changes the password: one's own, or any user's for an administrator. The user's other sessions end.

        Without ``old_password`` one's own is changed only within ten minutes of the login. Raises
        ForbiddenException.
        """
        hashed = authentication.salt_and_hash(new_password)
        body: Any = hashed
        if old_password is not None:
            old = authentication.salt_and_hash(old_password)
            body = {"password": hashed, "currentPassword": old, "isHashed": True}
        self._session.post(f"{self._path}/password", json=body)

    def _patch(self, **changes: Any) -> None:
        self._fill(self._session.patch(self._path, json=changes)["user"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, User) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def _facts(self) -> tuple[Any, ...]:
        return tuple(value for name, value in sorted(vars(self).items()) if name != "_session")

    def __repr__(self) -> str:
        return f"User(user_id={self.user_id}, username={self.username!r})"
