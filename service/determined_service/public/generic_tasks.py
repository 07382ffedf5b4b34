"""Generic tasks, and actions on tasks of any kind by their ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, Request
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined_registry.database.tables import tasks
from determined_service.access.dependencies import TaskReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, Name
from determined_service.base.db import as_asker
from determined_service.base.errors import BadRequest, Forbidden, NotFound
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import surroundings
from determined_service.lifecycle import tasks as tasking
from determined_service.lifecycle.kinds.generic import GIVEN, GenericFields
from determined_service.lifecycle.kinds.table import GENERIC
from determined_service.lifecycle.places import Named
from determined_service.public import bodies_with_files
from determined_service.public.bodies_with_files import WithFiles
from determined_service.scheduling.capacity import no_agent
from determined_service.state import states
from determined_service.state.change import changing, reader
from determined_service.submission import launching, placing, user_defaults
from determined_service.submission.launching import Launch
from determined_service.views.archives import base64_json, find_archive
from determined_service.views.tasks import get_task
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf, ViewerOf

router = Router("Tasks", "/api/v1")

Creator = Annotated[Principal, may(Action.CREATE, Kind.TASK)]
Killer = Annotated[Principal, may(Action.CHANGE, Kind.TASK, "kill")]
Reader = Annotated[Principal, may(Action.ENTER, Kind.TASK, "read the files of")]
Pauser = Annotated[Principal, may(Action.CHANGE, Kind.TASK, "pause or unpause")]

k = tasks.c


class NewGenericTask(WithFiles, GenericFields):
    """``CreateGenericTaskRequest``."""

    config: str = Field(default="", description="YAML text; of a fork it may be empty.")
    context_directory: list[dict[str, Any]] = Field(
        default_factory=list,
        description="Files: `path`, `type` (48 file, 53 directory), `content` (base64), `mode`.",
    )
    project_id: Id | None = None
    forked_from: Name | None = Field(
        default=None,
        description="The task whose configuration and files are taken, where none are given.",
    )
    parent_id: Name | None = Field(default=None, description="The task under which it stands.")
    inherit_context: bool = Field(default=False, description="The parent's files are taken.")


async def read_task(request: Request, user: Creator) -> AsyncIterator[NewGenericTask]:
    """The body, read after the sender is known."""
    async with bodies_with_files.read(request, NewGenericTask) as given:
        yield given


async def _other(conn: AsyncConnection, task_id: str, field: str) -> sa.Row[Any]:
    """Another generic task that the body names. Raises BadRequest."""
    wanted = sa.select(
        k.owner_id, k.config, k.data, k.model_def_hash, k.submitted_by, k.state
    ).where(k.id == task_id, k.kind == GENERIC.name)
    row = (await conn.execute(wanted)).first()
    if row is None:
        raise BadRequest(f"{field}: there is no generic task {task_id!r}")
    return row


def _is_own(user: Principal, row: sa.Row[Any]) -> bool:
    if user.admin:
        return True
    return row.owner_id == user.user_id and (user.task is None or row.submitted_by == user.task)


async def _completed(conn: AsyncConnection, given: NewGenericTask, user: Principal) -> Launch:
    """The launch, without its place, with the parts that it takes from other tasks. Raises BadRequest,
    Forbidden."""
    config: dict[str, Any] | str = given.config
    known = written = None
    if given.forked_from is not None:
        source = await _other(conn, given.forked_from, "forkedFrom")
        if not (user.task == given.forked_from or _is_own(user, source)):
            raise Forbidden(
                f"only its owner or an administrator may fork task {given.forked_from}: a fork has its "
                "program and its files, which others do not see. Create a new task from a "
                "configuration and files that you have"
            )
        known = source.model_def_hash
        if not given.config.strip():
            config = source.config
            written = (source.data or {}).get(GIVEN, config)
    if given.parent_id is not None:
        parent = await _other(conn, given.parent_id, "parentId")
        its_process = user.task == given.parent_id
        if not (its_process or _is_own(user, parent)):
            raise Forbidden(
                f"only its owner or an administrator may create tasks under task {given.parent_id}"
            )
        if parent.state in states.TERMINAL:
            raise BadRequest(f"parentId: task {given.parent_id} has ended")
        if given.inherit_context:
            known = parent.model_def_hash
    elif given.inherit_context:
        raise BadRequest("inheritContext: there is no parent to inherit from: give parentId, too")
    return Launch(
        GENERIC,
        config,
        given.context_directory,
        given._packed,
        asked=given,
        written=written,
        parent_id=given.parent_id,
        forked_from=given.forked_from,
        model_def_hash=known,
    )


@router.post("/generic-tasks", openapi_extra=bodies_with_files.described(NewGenericTask))
async def create_task(
    user: Creator,
    given: Annotated[NewGenericTask, Depends(read_task)],
    db: Db,
    settings: SettingsOf,
) -> Response:
    """Checks everything, then puts the task into the queue. Ours: `remarks`, sentences."""
    async with reader(db).connect() as conn:
        async with as_asker(conn):
            launch = await _completed(conn, given, user)
        layers = await user_defaults.find(conn, user.user_id)
    named = Named(project_id=given.project_id or None)
    place = await placing.of_task(db, user, launch.config, layers, named)
    launch = replace(launch, place=place, layers=layers)
    prepared = await launching.prepare(launch, settings)
    async with changing(db) as change:
        planned = await launching.plan(change.conn, launch, prepared, settings, user.user_id)
        task_id = await launching.store(change, launch, planned, settings, user.user_id, user.task)
        pool = planned.config["resources"]["resource_pool"]
        remarks = await surroundings.remarks(change.conn, planned.config, pool, is_task=True)
        if planned.warnings:
            remarks.append(no_agent(pool, "it"))
        remarks += planned.remarks
    return JsonResponse({"taskId": task_id, "warnings": list(planned.warnings), "remarks": remarks})


class Kill(BaseModel):
    """``KillGenericTaskRequest``."""

    killFromRoot: bool = False  # noqa: N815 - the name in the API


@router.post("/tasks/{task_id}/kill")
async def kill_task(task_id: str, user: Killer, db: Db, given: Kill | None = None) -> Response:
    """Kills a task of any kind and all tasks under it; with `killFromRoot` the whole tree in which it is.

    A trial is killed as by its own address: its search goes on."""
    from_root = given is not None and given.killFromRoot
    async with changing(db) as change:
        await _require(change.conn, task_id)
        for one in await GENERIC.tree(change.conn, task_id, from_root=from_root):
            await tasking.kill(change, one)
    return JsonResponse({})


@router.post("/tasks/{task_id}/pause")
async def pause_task(task_id: str, user: Pauser, db: Db) -> Response:
    """Ends the process of a generic task, and of all under it that may be paused; they wait for no slots."""
    async with changing(db) as change:
        await _require(change.conn, task_id)
        await GENERIC.pause(change, task_id)
        for one in await GENERIC.tree(change.conn, task_id):
            if one != task_id:
                await GENERIC.pause_if_possible(change, one)
    return JsonResponse({})


@router.post("/tasks/{task_id}/unpause")
async def unpause_task(task_id: str, user: Pauser, db: Db) -> Response:
    """The task, and all under it that were paused, wait for slots and begin anew."""
    async with changing(db) as change:
        await _require(change.conn, task_id)
        await GENERIC.unpause(change, task_id)
        for one in await GENERIC.tree(change.conn, task_id):
            if one != task_id:
                await GENERIC.unpause_if_paused(change, one)
    return JsonResponse({})


@router.get("/tasks/{task_id}/config")
async def read_config(task_id: str, user: TaskReader, db: Db, viewer_of: ViewerOf) -> Response:
    """The configuration as JSON text, a generic task's in its original form; secrets, and a task's program,
    are masked unless the owner or an administrator asks."""
    async with db.tx() as conn:
        task = await get_task(conn, task_id, viewer_of(user))
    return JsonResponse({"config": task["config"] or "{}"})


@router.get("/tasks/{task_id}/context_directory")
async def read_context(task_id: str, user: Reader, db: Db) -> Response:
    """A tar.gz of the files that were sent with a task, base64; empty without any."""
    async with db.tx() as conn:
        await _require(conn, task_id)
    archive = await find_archive(
        db, sa.select(k.model_def_hash).where(k.id == task_id).scalar_subquery()
    )
    if archive is None:
        return JsonResponse({"b64Tgz": ""})
    return base64_json("b64Tgz", archive.size, archive.pieces(db))


async def _require(conn: AsyncConnection, task_id: str) -> None:
    if (await conn.execute(sa.select(k.id).where(k.id == task_id))).first() is None:
        raise NotFound(f"task {task_id} does not exist")
