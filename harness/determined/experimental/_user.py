"""Users."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from determined.common.api import authentication, errors, pages
from determined.common.api.session import Session

_DEFAULTS = "/api/v1/users/defaults"


class User:
    """A user of the service. Attributes are as of the last :meth:`reload`.

    Attributes:
        user_id, username, display_name: the user's id and names.
        admin, active, remote: whether the user is an administrator, may log in, logs in elsewhere.
        agent_uid, agent_gid, agent_user, agent_group: the account on agents that the user is linked with, or
            None.
        document: the service's JSON, including fields that are not attributes.
    """

    def __init__(self, data: dict[str, Any], session: Session) -> None:
        self._session = session
        self._fill(data)

    def _fill(self, data: dict[str, Any]) -> None:
        self.document = data
        self.user_id: int = data["id"]
        self.username: str = data["username"]
        self.display_name: str = data.get("displayName") or ""
        self.admin: bool = data["admin"]
        self.active: bool = data["active"]
        self.remote: bool = data.get("remote") or False
        linked = data.get("agentUserGroup") or {}
        self.agent_uid: int | None = linked.get("agentUid")
        self.agent_gid: int | None = linked.get("agentGid")
        self.agent_user: str | None = linked.get("agentUser")
        self.agent_group: str | None = linked.get("agentGroup")

    @classmethod
    def _from_json(cls, data: dict[str, Any], session: Session) -> User:
        return cls(data, session)

    @property
    def _path(self) -> str:
        return f"/api/v1/users/{self.user_id}"

    def reload(self) -> None:
        """Fetches the attributes."""
        self._fill(self._session.get(self._path)["user"])

    def edit(
        self,
        *,
        username: str | None = None,
        display_name: str | None = None,
        admin: bool | None = None,
        active: bool | None = None,
        remote: bool | None = None,
    ) -> dict[str, list[Any]]:
        """Changes what is given: administrators only, but for one's own display name.

        Returns what :meth:`deactivate` returns, which is empty unless ``active`` is False.
        """
        given = {
            "username": username,
            "displayName": display_name,
            "admin": admin,
            "active": active,
            "remote": remote,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        return dict(self._patch(**changes).get("stillRunning") or {})

    def rename(self, new_username: str) -> None:
        """Administrators only."""
        self.edit(username=new_username)

    def activate(self) -> None:
        """Allows the user to log in again."""
        self.edit(active=True)

    def deactivate(self) -> dict[str, list[Any]]:
        """Forbids the user to log in, and ends the user's shells and notebooks.

        Returns the ids of the user's ``experiments`` and ``tasks`` that go on until somebody ends them. They
        can submit nothing any more.
        """
        return self.edit(active=False)

    def change_display_name(self, display_name: str) -> None:
        """Changes the name that lists show."""
        self.edit(display_name=display_name)

    def change_password(self, new_password: str, *, old_password: str | None = None) -> None:
        """Changes the password: one's own, or any user's for an administrator. The user's other sessions end.

        Without ``old_password`` one's own is changed only within ten minutes of the login. Raises
        ForbiddenException; BadRequestException for one that is too short for a service that other machines
        reach.
        """
        hashed = authentication.check_new_password(self._session, new_password)
        body: Any = hashed
        if old_password is not None:
            old = authentication.salt_and_hash(old_password)
            body = {"password": hashed, "currentPassword": old, "isHashed": True}
        self._session.post(f"{self._path}/password", json=body)

    def link_with_agent(
        self,
        agent_uid: int | None = None,
        agent_gid: int | None = None,
        agent_user: str | None = None,
        agent_group: str | None = None,
    ) -> None:
        """Links the user with an account on agents: all four, or none to unlink. Administrators only."""
        account = {
            "agentUid": agent_uid,
            "agentGid": agent_gid,
            "agentUser": agent_user,
            "agentGroup": agent_group,
        }
        self._patch(agentUserGroup=account)

    def _patch(self, **changes: Any) -> dict[str, Any]:
        answer = self._session.patch(self._path, json=changes)
        self._fill(answer["user"])
        return answer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, User) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def _facts(self) -> tuple[Any, ...]:
        hidden = ("_session", "document")
        return tuple(value for name, value in sorted(vars(self).items()) if name not in hidden)

    def __repr__(self) -> str:
        return f"User(user_id={self.user_id}, username={self.username!r})"


def require_may_create(session: Session) -> None:
    """Raises ForbiddenException for somebody who may not create users; creates none.

    The service looks at the rights first, and then refuses a user without a name.
    """
    with contextlib.suppress(errors.BadRequestException):
        session.post("/api/v1/users", json={"user": {}})


class UserVerbs:
    """The methods of :class:`~determined.experimental.Determined` for users."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def whoami(self) -> User:
        """The user who is logged in."""
        return User._from_json(authentication.current_user(self._session), self._session)

    def get_session_username(self) -> str:
        """The name of the user who is logged in."""
        return self.whoami().username

    def logout(self) -> None:
        """Ends this login, on this machine and at the service."""
        authentication.logout(self._session, self.get_session_username())

    def list_users(self, active: bool | None = None) -> list[User]:
        """All users, or only the active or inactive ones if ``active`` is given."""
        found = pages.read(self._session, "/api/v1/users", "users", {"active": active})
        return [User._from_json(data, self._session) for data in found]

    def get_user_defaults(self) -> dict[str, Any]:
        """The values that your configurations take where they and their template leave them open."""
        return dict(self._session.get(_DEFAULTS)["config"])

    def set_user_defaults(self, config: Mapping[str, Any]) -> list[str]:
        """Replaces your defaults, fields of configurations; ``{}``: none. They hold for what you submit
        later.

        Returns sentences on fields without effect. Raises BadRequestException.
        """
        return list(self._session.put(_DEFAULTS, json={"config": dict(config)})["remarks"])

    def create_user(
        self, username: str, admin: bool, password: str | None = None, remote: bool = False
    ) -> User:
        """Creates a user; without ``password`` the password is blank. Raises ForbiddenException unless
        the caller is an administrator; BadRequestException for a password that is blank or too short for a
        service that other machines reach."""
        given = {"username": username, "admin": admin, "active": True, "remote": remote}
        body: dict[str, Any] = {"user": given}
        if password is not None:
            hashed = authentication.check_new_password(self._session, password)
            body |= {"password": hashed, "isHashed": True}
        return User._from_json(
            self._session.post("/api/v1/users", json=body)["user"], self._session
        )

    def get_user_by_id(self, user_id: int) -> User:
        """Raises NotFoundException."""
        return User._from_json(self._session.get(f"/api/v1/users/{user_id}")["user"], self._session)

    def get_user_by_name(self, user_name: str) -> User:
        """Raises NotFoundException."""
        path = f"/api/v1/users/{quote(user_name, safe='')}/by-username"
        return User._from_json(self._session.get(path)["user"], self._session)
