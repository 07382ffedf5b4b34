"""Projects: found, changed, archived, moved and deleted, their notes, and moves of experiments into them."""

# Parameters and fields are named as in the API.
# ruff: noqa: N815
from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from determined.common.wire import limits
from determined_registry.database.tables import projects
from determined_service.access.dependencies import Admission, ProjectReader, may, may_named
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, Name, Notes, Text
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import place_deletion, places
from determined_service.lifecycle import workspaces as keeping
from determined_service.lifecycle.places import Named, Place
from determined_service.public.bulk import ChosenExperiments, act_on_many
from determined_service.public.workspaces import require_all
from determined_service.state.change import Change, changing, reader
from determined_service.views.workspaces import contents, get_project
from determined_service.web.router import Router
from determined_service.web.state import Db, OwnersOf

router = Router("Workspaces", "/api/v1")
ONE = "/projects/{project_id}"

p = projects.c
Changer = Annotated[Principal, may(Action.CHANGE, Kind.PROJECT)]


# Before the route of an id: "key" is none.
@router.get("/projects/key/{key}")
async def read_by_key(key: Name, user: ProjectReader, db: Db) -> Response:
    """The project of that key."""
    async with reader(db).connect() as conn:
        return JsonResponse({"project": await get_project(conn, user, p.key == key, key)})


@router.get(ONE)
async def read_project(project_id: Id, user: ProjectReader, db: Db) -> Response:
    """One project."""
    async with reader(db).connect() as conn:
        return JsonResponse({"project": await _one(conn, user, project_id)})


async def _one(conn: Any, user: Principal, project_id: int) -> dict[str, Any]:
    return await get_project(conn, user, p.id == project_id, project_id)


class ProjectChange(BaseModel):
    """``v1PatchProject``: what is left out stays as it is."""

    name: Name | None = None
    description: Text | None = None
    key: Name | None = None

    def values(self) -> dict[str, Any]:
        """The columns to set. Raises BadRequest."""
        found: dict[str, Any] = {}
        if self.name is not None:
            found["name"] = keeping.check_name(self.name, "project")
        if self.description is not None:
            found["description"] = self.description
        if self.key:
            found["key"] = keeping.check_key(self.key)
        return found


@router.patch(ONE)
async def change_project(project_id: Id, given: ProjectChange, user: Changer, db: Db) -> Response:
    """Changes the name, the description or the key."""
    values = given.values()
    async with changing(db) as change:
        row = await keeping.lock_project(change.conn, project_id, "be changed")
        keeping.require_not_archived(row, "project", "be changed")
        await keeping.change_project(change.conn, project_id, values)
        return JsonResponse({"project": await _one(change.conn, user, project_id)})


@router.get(f"{ONE}/contents")
async def read_contents(project_id: Id, user: ProjectReader, db: Db) -> Response:
    """Counts of what a deletion takes with it (`contents`), and of what has to end before. Ours."""
    async with reader(db).connect() as conn:
        await _one(conn, user, project_id)
        return JsonResponse({"contents": await contents(conn, p.id == project_id)})


@router.delete(ONE)
async def delete_project(
    project_id: Id,
    user: Annotated[Principal, may(Action.DELETE, Kind.PROJECT)],
    db: Db,
    owners: OwnersOf,
) -> Response:
    """Requests the deletion of a project with its experiments (checkpoints, logs, Prefect runs).

    409 while something runs in it; 403 if an experiment in it is another user's, which only administrators
    delete. The project is DELETING until it is gone, or DELETE_FAILED with a reason; then the deletion may be
    requested again.
    """
    async with reader(db).connect() as conn:
        ids = await place_deletion.experiments_in(conn, project_id=project_id)
    await require_all(user, owners, {Kind.EXPERIMENT: ids})
    async with changing(db) as change:
        await place_deletion.request_project(change, project_id)
    await place_deletion.retry_failed(db, ids)
    return JsonResponse({"completed": False})


@router.post(f"{ONE}/archive")
async def archive_project(
    project_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.PROJECT, "archive")],
    db: Db,
) -> Response:
    """Archives the project: nothing can be made in it until it is unarchived."""
    async with changing(db) as change:
        await keeping.archive_project(change.conn, project_id, True)
    return JsonResponse({})


@router.post(f"{ONE}/unarchive")
async def unarchive_project(
    project_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.PROJECT, "unarchive")],
    db: Db,
) -> Response:
    """Opens an archived project again."""
    async with changing(db) as change:
        await keeping.archive_project(change.conn, project_id, False)
    return JsonResponse({})


class ProjectMove(BaseModel):
    """``v1MoveProjectRequest``."""

    destinationWorkspaceId: Id


@router.post(f"{ONE}/move")
async def move_project(
    project_id: Id,
    given: ProjectMove,
    user: Annotated[Principal, may(Action.CHANGE, Kind.PROJECT, "move")],
    db: Db,
) -> Response:
    """Moves the project with its experiments to another workspace."""
    named = Named(
        workspace_id=given.destinationWorkspaceId, workspace_field="destinationWorkspaceId"
    )
    async with changing(db) as change:
        to = await places.find(change.conn, user, named, Kind.PROJECT, whole=True)
        await keeping.move_project(change.conn, project_id, to.workspace_id)
    return JsonResponse({})


class ProjectNote(BaseModel):
    """``v1Note``: a heading, and Markdown."""

    name: Name
    contents: Notes


class AllNotes(BaseModel):
    """``v1PutProjectNotesRequest``."""

    notes: Annotated[list[ProjectNote], Field(max_length=limits.PROJECT_NOTES)]


@router.post(f"{ONE}/notes")
async def add_note(project_id: Id, given: ProjectNote, user: Changer, db: Db) -> Response:
    """Adds a note behind the others; answers all."""
    async with changing(db) as change:
        await keeping.add_note(change.conn, project_id, given.model_dump())
        found = await _one(change.conn, user, project_id)
    return JsonResponse({"notes": found["notes"]})


@router.put(f"{ONE}/notes")
async def put_notes(project_id: Id, given: AllNotes, user: Changer, db: Db) -> Response:
    """Replaces all notes; answers them."""
    async with changing(db) as change:
        notes = [one.model_dump() for one in given.notes]
        await keeping.set_notes(change.conn, project_id, notes)
        found = await _one(change.conn, user, project_id)
    return JsonResponse({"notes": found["notes"]})


class ExperimentMove(BaseModel):
    """``v1MoveExperimentRequest``."""

    destinationProjectId: Id


@router.post("/experiments/{experiment_id}/move")
async def move_experiment(
    experiment_id: Id,
    given: ExperimentMove,
    user: Annotated[Principal, may(Action.CHANGE, Kind.EXPERIMENT, "move")],
    db: Db,
) -> Response:
    """Moves the experiment to a project, in which the sender may make experiments."""
    async with changing(db) as change:
        to = await destination(change, user, given.destinationProjectId)
        await keeping.move_experiment(change, experiment_id, to)
    return JsonResponse({})


class ExperimentsMove(ChosenExperiments):
    """``v1MoveExperimentsRequest``: those named, or those that match the filters."""

    destination_project_id: Id


@router.post(f"{ONE}/experiments/move")
async def move_experiments(
    project_id: Id,
    given: ExperimentsMove,
    admission: Annotated[Admission, may_named(Action.CHANGE, Kind.EXPERIMENT, "move")],
    db: Db,
) -> dict[str, list[dict[str, Any]]]:
    """Moves experiments of the project to another one; one result for each, with errors in words."""
    given.project_id = project_id
    async with changing(db) as change:
        to = await destination(change, admission.subject, given.destination_project_id)

    async def move(change: Change, experiment_id: int, by: str) -> None:
        await places.hold(change.conn, to)
        await keeping.move_experiment(change, experiment_id, to)

    return await act_on_many("move", given, admission, db, move)


async def destination(change: Change, user: Principal, project_id: int) -> Place:
    """The (locked) project into which the user moves experiments. Raises as :func:`.places.find`."""
    named = Named(project_id=project_id, field="destinationProjectId")
    return await places.find(change.conn, user, named, Kind.EXPERIMENT, lock=True)
