"""Access tokens of users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from determined.common.api import Session, authentication, pages

TOKENS = "/api/v1/tokens"


class AccessToken:
    """A token by which a program asks in a user's name; what it is, and not the secret itself.

    Attributes:
        id: its number.
        user_id: the user whose token it is.
        username: that user's name.
        description: as it was given.
        created_at: when it was made (ISO 8601).
        expires_at: when it ends; None: never.
        revoked: True if it was ended for good.
        read_only: True if nothing can be changed by it.
        workspace: the name of the one workspace that it shows; None: all that its user sees.
        last_used_at: when it was used last, to the hour; None: never.
        document: the service's JSON.
    """

    def __init__(self, data: dict[str, Any], session: Session) -> None:
        self._session = session
        self._fill(data)

    def _fill(self, data: dict[str, Any]) -> None:
        self.document = data
        self.id: int = data["id"]
        self.user_id: int = data["userId"]
        self.username: str = data.get("username") or ""
        self.description: str = data.get("description") or ""
        self.created_at: str | None = data.get("createdAt")
        expiry = data.get("expiry")
        self.expires_at: str | None = None if expiry is None or expiry >= "9999" else expiry
        self.revoked = bool(data.get("revoked"))
        self.read_only = bool(data.get("readOnly"))
        self.workspace: str | None = data.get("workspaceName")
        self.last_used_at: str | None = data.get("lastUsedAt")

    def set_description(self, description: str) -> None:
        """Raises ForbiddenException; ConflictException if it was revoked."""
        self._change(description=description)

    def revoke(self) -> None:
        """Ends it at once and for good. Raises ForbiddenException; ConflictException if it has ended so."""
        self._change(setRevoked=True)

    def _change(self, **given: Any) -> None:
        answer = self._session.patch(f"{TOKENS}/{self.id}", json={"tokenId": self.id, **given})
        self._fill(answer["tokenInfo"])


@dataclass(frozen=True)
class NewAccessToken:
    """A token that was just made: its number, and the secret, which nobody can read again."""

    id: int
    token: str


class AccessTokenVerbs:
    """The methods of :class:`~determined.experimental.Determined` for access tokens."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def create_access_token(
        self,
        *,
        days: float | None = None,
        description: str = "",
        read_only: bool = False,
        user_id: int | None = None,
        workspace_id: int | None = None,
    ) -> NewAccessToken:
        """Makes a token of the user ``user_id`` (default: yourself; others are for administrators).

        ``days``: how long it is good; -1: for ever; None: as long as the cluster says. ``workspace_id``: the
        one workspace that it shows; it must be ``read_only`` then, and the cluster must have roles. Raises
        BadRequestException, also for longer than the cluster allows, ForbiddenException.
        """
        owner = authentication.current_user(self._session)["id"] if user_id is None else user_id
        body: dict[str, Any] = {
            "userId": owner,
            "description": description,
            "readOnly": read_only,
        }
        if workspace_id is not None:
            body["workspaceId"] = workspace_id
        if days is not None:
            body["lifespan"] = "-1" if days == -1 else f"{days * 24:.9f}h"
        answer = self._session.post(TOKENS, json=body)
        return NewAccessToken(answer["tokenId"], answer["token"])

    def list_access_tokens(
        self,
        username: str | None = None,
        *,
        ids: Sequence[int] = (),
        show_inactive: bool = False,
    ) -> list[AccessToken]:
        """Your tokens; an administrator gets those of all users, or of ``username``.

        Those that have ended are among them for 30 days with ``show_inactive``, or by their ``ids``. Raises
        NotFoundException, ForbiddenException.
        """
        wanted: dict[str, Any] = {"showInactive": str(show_inactive).lower()}
        if username:
            wanted["username"] = username
        if ids:
            wanted["tokenIds"] = list(ids)
        found = pages.read(self._session, TOKENS, "tokenInfo", wanted)
        return [AccessToken(one, self._session) for one in found]
