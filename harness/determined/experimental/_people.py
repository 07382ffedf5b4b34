"""Groups of users, and roles: what `det user-group` and `det rbac` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from determined.common.api import errors
from determined.common.api.session import Session
from determined.experimental._user import UserVerbs

EVERYTHING = -1
"""The limit of a list that is not cut."""


class PeopleVerbs:
    """The requests of the command line about groups and roles; each answer is the service's JSON."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._users = UserVerbs(session)

    def list_groups(
        self, of_user: str | None = None, offset: int = 0, limit: int = EVERYTHING
    ) -> list[dict[str, Any]]:
        """``{"groupId", "name", "numMembers"}`` of each. Raises NotFoundException for an unknown user."""
        asked: dict[str, Any] = {"offset": offset, "limit": limit}
        if of_user is not None:
            asked["userId"] = self._user(of_user)
        found = self._session.post("/api/v1/groups/search", json=asked)["groups"]
        return [{**one["group"], "numMembers": one["numMembers"]} for one in found]

    def create_group(self, name: str, members: Sequence[str]) -> dict[str, Any]:
        """Raises ForbiddenException, NotFoundException, and APIException for a name that is taken."""
        asked = {"name": name, "addUsers": [self._user(one) for one in members]}
        return dict(self._session.post("/api/v1/groups", json=asked)["group"])

    def read_group(self, name: str) -> dict[str, Any]:
        """The group with its members. Raises NotFoundException."""
        return dict(self._session.get(f"/api/v1/groups/{self._group(name)}")["group"])

    def change_group(
        self,
        name: str,
        *,
        new_name: str | None = None,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Carries all of it out, or nothing. Raises ForbiddenException, NotFoundException, APIException."""
        asked = {
            "addUsers": [self._user(one) for one in add],
            "removeUsers": [self._user(one) for one in remove],
            **({} if new_name is None else {"name": new_name}),
        }
        path = f"/api/v1/groups/{self._group(name)}"
        return dict(self._session.put(path, json=asked)["group"])

    def delete_group(self, name: str) -> None:
        """Raises ForbiddenException, NotFoundException."""
        self._session.delete(f"/api/v1/groups/{self._group(name)}")

    def list_roles(
        self, *, in_workspace: bool = False, offset: int = 0, limit: int = EVERYTHING
    ) -> list[dict[str, Any]]:
        """The roles; ``in_workspace``: those that can be assigned in a single workspace."""
        asked = {"offset": offset, "limit": limit, **({"workspaceId": 1} if in_workspace else {})}
        path = "/api/v1/roles/search/by-assignability"
        return list(self._session.post(path, json=asked)["roles"])

    def read_role(self, name: str) -> dict[str, Any]:
        """The role with its assignments. Raises NotFoundException."""
        asked = {"roleIds": [self._role(name)["roleId"]]}
        (found,) = self._session.post("/api/v1/roles/search/by-ids", json=asked)["roles"]
        return dict(found)

    def roles_of_user(self, username: str) -> list[dict[str, Any]]:
        """The user's roles, each with the assignments by which the user has it. Raises NotFoundException."""
        path = f"/api/v1/roles/search/by-user/{self._user(username)}"
        return list(self._session.get(path)["roles"])

    def roles_of_group(self, name: str) -> dict[str, Any]:
        """``roles``, and ``assignments`` in the same order. Raises NotFoundException."""
        return dict(self._session.get(f"/api/v1/roles/search/by-group/{self._group(name)}"))

    def my_permissions(self) -> dict[str, Any]:
        """``roles``, ``assignments`` in the same order, and ``inForce``: whether roles hold."""
        return dict(self._session.get("/api/v1/permissions/summary"))

    def assign(
        self,
        role: str,
        *,
        user: str | None = None,
        group: str | None = None,
        workspace: str | None = None,
        take: bool = False,
    ) -> None:
        """Assigns a role, or takes it. ``workspace``: None, everywhere. Raises ForbiddenException,
        NotFoundException, and APIException for an assignment that is there already."""
        scope: dict[str, Any] = {"role": {"roleId": self._role(role)["roleId"]}}
        if workspace is not None:
            scope["scopeWorkspaceId"] = self._workspace(workspace)
        one: dict[str, Any] = {"roleAssignment": scope}
        if user is not None:
            asked = {"userRoleAssignments": [{"userId": self._user(user), **one}]}
        else:
            asked = {"groupRoleAssignments": [{"groupId": self._group(group or ""), **one}]}
        verb = "remove" if take else "add"
        self._session.post(f"/api/v1/roles/{verb}-assignments", json=asked)

    def _user(self, username: str) -> int:
        return self._users.get_user_by_name(username).user_id

    def _group(self, name: str) -> int:
        asked = {"name": name, "limit": 1}
        found = self._session.post("/api/v1/groups/search", json=asked)["groups"]
        if not found:
            raise errors.NotFoundException(
                f"there is no group {name!r} that you may see: det user-group list shows the groups"
            )
        return int(found[0]["group"]["groupId"])

    def _role(self, name: str) -> dict[str, Any]:
        found = {one["name"].lower(): one for one in self.list_roles()}
        if name.lower() not in found:
            known = ", ".join(one["name"] for one in found.values())
            raise errors.NotFoundException(f"there is no role {name!r}; there are {known}")
        return dict(found[name.lower()])

    def _workspace(self, name: str) -> int:
        asked = {"name": name, "limit": EVERYTHING}
        found = self._session.get("/api/v1/workspaces", params=asked)["workspaces"]
        for one in found:
            if one["name"].lower() == name.lower():
                return int(one["id"])
        raise errors.NotFoundException(f"there is no workspace {name!r} that you may see")
