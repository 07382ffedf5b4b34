"""Workspaces, their projects, and the resource pools that they may use."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from determined.common.api import Session, errors, pages
from determined.common.api.places import PROJECTS, WORKSPACES, find_project, find_workspace

if TYPE_CHECKING:
    from determined.experimental._experiment import Experiment

DELETION_TIMEOUT_S = 600.0
_POLL_S = 0.5


class _Place:
    """The common part of workspaces and projects."""

    _path: str
    _noun: str
    _session: Session
    name: str | None
    document: dict[str, Any]

    def reload(self) -> None:
        """Fetches the attributes. Raises NotFoundException."""
        self._fill(self._session.get(self._path)[self._noun])

    def _fill(self, data: dict[str, Any]) -> None:
        raise NotImplementedError

    def archive(self) -> None:
        """Archive it: nothing can be made in it until it is unarchived."""
        self._session.post(f"{self._path}/archive")
        self.reload()

    def unarchive(self) -> None:
        """Unarchive it: things can be made in it again."""
        self._session.post(f"{self._path}/unarchive")
        self.reload()

    def contents(self) -> dict[str, Any]:
        """Counts of the things that a deletion removes, and of those that must end or leave before it, as the
        service's JSON."""
        return dict(self._session.get(f"{self._path}/contents")["contents"])

    def delete(self) -> None:
        """Requests its deletion with all that is in it; :meth:`wait_until_deleted` waits for the end.

        Raises APIException (409) while something runs in it, and ForbiddenException if something in it
        belongs to another user and one is not an administrator.
        """
        self._session.delete(self._path)

    def wait_until_deleted(self, timeout_s: float = DELETION_TIMEOUT_S) -> bool:
        """Waits until it is gone; False if that takes longer. Raises DeleteFailedException with the
        reason."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                self.reload()
            except errors.NotFoundException:
                return True
            if self.document["state"] == "WORKSPACE_STATE_DELETE_FAILED":
                raise errors.DeleteFailedException(
                    f"{self._noun} {self.name!r} could not be deleted: {self.document['errorMessage']}"
                )
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)


class Project(_Place):
    """A named collection of experiments. Attributes are as of the last :meth:`reload`.

    Attributes:
        id, name, key, description, archived: as shown in lists; the key begins the names of its runs.
        notes: dictionaries with ``name`` and ``contents``.
        n_experiments, n_active_experiments: how many there are, and how many have not ended.
        workspace_id, username: its workspace, and its owner's name.
        document: the service's JSON, including fields that are not attributes.
    """

    _noun = "project"

    def __init__(self, session: Session, project_id: int) -> None:
        self._session = session
        self.id = project_id
        self.name: str | None = None
        self.key: str | None = None
        self.description: str | None = None
        self.archived: bool | None = None
        self.notes: list[dict[str, str]] = []
        self.n_experiments: int | None = None
        self.n_active_experiments: int | None = None
        self.workspace_id: int | None = None
        self.username: str | None = None
        self.document: dict[str, Any] = {}

    @classmethod
    def _from_json(cls, data: dict[str, Any], session: Session) -> Project:
        found = cls(session, data["id"])
        found._fill(data)
        return found

    def _fill(self, data: dict[str, Any]) -> None:
        self.document = data
        self.id = data["id"]
        self.name = data["name"]
        self.key = data.get("key")
        self.description = data.get("description")
        self.archived = data["archived"]
        self.notes = list(data.get("notes") or ())
        self.n_experiments = data.get("numExperiments")
        self.n_active_experiments = data.get("numActiveExperiments")
        self.workspace_id = data["workspaceId"]
        self.username = data.get("username")

    @property
    def _path(self) -> str:  # type: ignore[override]
        return f"{PROJECTS}/{self.id}"

    def edit(
        self, *, name: str | None = None, description: str | None = None, key: str | None = None
    ) -> None:
        """Changes what is given. Raises APIException (409) if the name or the key is taken."""
        given = {"name": name, "description": description, "key": key}
        changes = {field: value for field, value in given.items() if value is not None}
        self._fill(self._session.patch(self._path, json=changes)["project"])

    def set_name(self, name: str) -> None:
        """Renames it; see :meth:`edit`."""
        self.edit(name=name)

    def set_description(self, description: str) -> None:
        """Changes the description."""
        self.edit(description=description)

    def set_key(self, key: str) -> None:
        """Changes the key, 1 to 5 capital letters and digits; see :meth:`edit`."""
        self.edit(key=key)

    def move(self, workspace: Workspace) -> None:
        """Moves it, with its experiments, to another workspace."""
        self._session.post(f"{self._path}/move", json={"destinationWorkspaceId": workspace.id})
        self.reload()

    def add_note(self, name: str, contents: str) -> None:
        """Adds a note, in Markdown, behind the others."""
        given = {"name": name, "contents": contents}
        self.notes = list(self._session.post(f"{self._path}/notes", json=given)["notes"])

    def remove_note(self, name: str) -> None:
        """Removes the one note of that name. Raises ValueError if there is none, or more than one."""
        self.reload()
        left = [note for note in self.notes if note["name"] != name]
        if len(self.notes) - len(left) != 1:
            raise ValueError(
                f"project {self.name!r} has {len(self.notes) - len(left)} notes called {name!r}: one can be "
                "removed only if no other has its name"
            )
        self.notes = list(self._session.put(f"{self._path}/notes", json={"notes": left})["notes"])

    def list_experiments(self) -> list[Experiment]:
        """Its experiments, archived ones included."""
        from determined.experimental._experiment_verbs import ExperimentVerbs

        return ExperimentVerbs(self._session).list_experiments(project_id=self.id)

    def __repr__(self) -> str:
        return f"Project(id={self.id}, name={self.name!r})"


class Workspace(_Place):
    """A named collection of projects, models, templates and tasks. Attributes are as of the last
    :meth:`reload`.

    Attributes:
        id, name: its number and its name.
        document: the service's JSON, including fields that are not attributes.
    """

    _noun = "workspace"

    def __init__(
        self,
        session: Session,
        workspace_id: int | None = None,
        workspace_name: str | None = None,
    ) -> None:
        """By its id or by its name, not both. Raises NotFoundException for an unknown name."""
        if (workspace_id is None) == (workspace_name is None):
            raise ValueError("a workspace is given by its id or by its name, not by both")
        self._session = session
        self.id = workspace_id or 0
        self.name = workspace_name
        self.document = {}
        if workspace_name is not None:
            self._fill(find_workspace(session, workspace_name))

    @classmethod
    def _from_json(cls, data: dict[str, Any], session: Session) -> Workspace:
        found = cls(session, data["id"])
        found._fill(data)
        return found

    def _fill(self, data: dict[str, Any]) -> None:
        self.document = data
        self.id = data["id"]
        self.name = data["name"]

    @property
    def _path(self) -> str:  # type: ignore[override]
        return f"{WORKSPACES}/{self.id}"

    def edit(self, **changes: Any) -> None:
        """Changes fields of the REST API: ``name``, ``checkpointStorageConfig``, ``defaultComputePool``,
        ``defaultAuxPool`` and (administrators) ``agentUserGroup``. Raises BadRequestException.
        """
        self._fill(self._session.patch(self._path, json=changes)["workspace"])

    def list_pools(self) -> list[ResourcePool]:
        """The resource pools that it may use."""
        path = f"{self._path}/available-resource-pools"
        return [
            ResourcePool(self._session, name)
            for name in _names(self._session, path, "resourcePools")
        ]

    def list_members(self) -> list[dict[str, str]]:
        """The users and groups with a role in it: ``name``, ``kind`` (user or group) and ``role`` of each."""
        found = self._session.get(f"/api/v1/roles/workspace/{self.id}")
        names = {
            "user": {one["id"]: one["username"] for one in found["usersAssignedDirectly"]},
            "group": {one["groupId"]: one["name"] for one in found["groups"]},
        }
        members = []
        for each in found["assignments"]:
            for kind, key in (("user", "userRoleAssignments"), ("group", "groupRoleAssignments")):
                for one in each.get(key) or ():
                    name = names[kind].get(one[f"{kind}Id"])
                    if name is not None:
                        role = each["role"]["name"]
                        members.append({"name": name, "kind": kind, "role": role})
        return sorted(members, key=lambda one: (one["kind"], one["name"], one["role"]))

    def create_project(
        self, name: str, description: str | None = None, *, key: str | None = None
    ) -> Project:
        """Makes a project. Raises APIException (409) if the name or the key is taken."""
        given = {"name": name, "description": description, "key": key}
        body = {field: value for field, value in given.items() if value is not None}
        answer = self._session.post(f"{self._path}/projects", json=body)
        return Project._from_json(answer["project"], self._session)

    def delete_project(self, name: str) -> None:
        """Requests the deletion of a project; see :meth:`Project.delete`."""
        self.get_project(name).delete()

    def get_project(self, project_name: str) -> Project:
        """A project by its name, in any case of letters. Raises NotFoundException with the nearest name."""
        within = {"id": self.id, "name": self.name}
        return Project._from_json(find_project(self._session, within, project_name), self._session)

    def list_projects(self) -> list[Project]:
        """Its projects, by id."""
        return list(self.iter_projects())

    def iter_projects(
        self,
        params: Mapping[str, Any] | None = None,
        *,
        offset: int = 0,
        page_size: int = pages.PAGE_SIZE,
    ) -> Iterator[Project]:
        """As :meth:`list_projects`, one at a time; ``params``: of the REST API, as ``sortBy``."""
        found = pages.read(
            self._session,
            f"{self._path}/projects",
            "projects",
            params,
            offset=offset,
            page_size=page_size,
        )
        return found.each(lambda data: Project._from_json(data, self._session))

    def __repr__(self) -> str:
        return f"Workspace(id={self.id}, name={self.name!r})"


class ResourcePool:
    """A resource pool, and the workspaces to which it is bound: only these may use it then."""

    def __init__(self, session: Session, name: str = "") -> None:
        self._session = session
        self.name = name

    @property
    def _path(self) -> str:
        return f"/api/v1/resource-pools/{quote(self.name, safe='')}/workspace-bindings"

    def add_bindings(self, workspace_names: list[str]) -> None:
        """Binds it to further workspaces. Administrators only."""
        self._session.post(self._path, json={"workspaceNames": workspace_names})

    def remove_bindings(self, workspace_names: list[str]) -> None:
        """Unbinds it from workspaces; bound to none, it is open to all. Administrators only."""
        self._session.delete(self._path, json={"workspaceNames": workspace_names})

    def replace_bindings(self, workspace_names: list[str]) -> None:
        """Binds it to these workspaces alone; without any, it is open to all. Administrators only."""
        self._session.put(self._path, json={"workspaceNames": workspace_names})

    def list_workspaces(self) -> list[str | None]:
        """The names of the workspaces to which it is bound."""
        ids = list(_names(self._session, self._path, "workspaceIds"))
        known = {one.id: one.name for one in WorkspaceVerbs(self._session).list_workspaces()}
        return [known.get(one) for one in ids]

    def __repr__(self) -> str:
        return f"ResourcePool(name={self.name!r})"


def _names(session: Session, path: str, key: str) -> Iterable[Any]:
    return list(session.get(path, params={"limit": -1})[key])


class WorkspaceVerbs:
    """The methods of :class:`~determined.experimental.Determined` for workspaces."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def create_workspace(self, name: str, **more: Any) -> Workspace:
        """Makes a workspace; ``more``: fields of the REST API, as in :meth:`Workspace.edit`.

        Raises APIException (409) if the name is taken, BadRequestException, ForbiddenException.
        """
        answer = self._session.post(WORKSPACES, json={"name": name, **more})
        return Workspace._from_json(answer["workspace"], self._session)

    def get_workspace(self, name: str) -> Workspace:
        """A workspace by its name, in any case of letters. Raises NotFoundException with the nearest name."""
        return Workspace(self._session, workspace_name=name)

    def list_workspaces(self) -> list[Workspace]:
        """The workspaces, by id."""
        return list(self.iter_workspaces())

    def iter_workspaces(
        self,
        params: Mapping[str, Any] | None = None,
        *,
        offset: int = 0,
        page_size: int = pages.PAGE_SIZE,
    ) -> Iterator[Workspace]:
        """As :meth:`list_workspaces`, one at a time; ``params``: of the REST API, as ``sortBy``."""
        found = pages.read(
            self._session, WORKSPACES, "workspaces", params, offset=offset, page_size=page_size
        )
        return found.each(lambda data: Workspace._from_json(data, self._session))

    def delete_workspace(self, name: str) -> None:
        """Requests the deletion of a workspace with all that is in it; see :meth:`Workspace.delete`."""
        self.get_workspace(name).delete()
