"""Commands, notebooks, shells and TensorBoards: the same routes for each kind.

A kind that may be launched gets its ``POST`` by itself, with the kind's own fields in its body. Routes of one
kind only are in modules apart: notebook_files, shells, tensorboards.
"""

# Parameters are named as in the API.
# ruff: noqa: N803
from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, Query, Request
from pydantic import BaseModel, Field, create_model
from starlette.responses import Response

from determined_registry.database.tables import tasks, users
from determined_service.access.dependencies import TaskReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, IdempotencyKey, ManyIds, ManyNames, Name, Priority
from determined_service.base.db import as_asker
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import idle, surroundings
from determined_service.lifecycle import tasks as tasking
from determined_service.lifecycle.kinds.launched import LaunchedKind, LaunchFields
from determined_service.lifecycle.kinds.table import GENERIC, launched_kinds
from determined_service.lifecycle.places import Named, Place
from determined_service.public import bodies_with_files
from determined_service.public.bodies_with_files import WithFiles
from determined_service.scheduling import programs
from determined_service.scheduling.capacity import no_agent
from determined_service.scheduling.job_changes import set_task_priority
from determined_service.state.change import changing, reader
from determined_service.submission import launching, placing, templates
from determined_service.submission.launching import Launch
from determined_service.submission.templates import StoredTemplate
from determined_service.views.launched import (
    SORT_KEYS,
    WEIGHT,
    counts,
    get_launched,
    launched_json,
    planned_json,
    select_launched,
)
from determined_service.views.lists import answer_list, each
from determined_service.views.paging import Limit, Offset, OrderBy, ordered
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf, SnapshotsOf, ViewerOf

router = Router("Tasks", "/api/v1")

Creator = Annotated[Principal, may(Action.CREATE, Kind.TASK)]
Killer = Annotated[Principal, may(Action.CHANGE, Kind.TASK, "kill")]
Changer = Annotated[Principal, may(Action.CHANGE, Kind.TASK, "change the priority of")]
Reporter = Annotated[Principal, may(Action.REPORT, Kind.TASK, "report for")]
Many = Annotated[ManyNames, Query(default_factory=list)]


class NewTask(WithFiles, LaunchFields):
    """``LaunchCommandRequest`` and its sisters. The body of a kind has the kind's fields, too."""

    config: dict[str, Any] = Field(default_factory=dict, description="The configuration.")
    files: list[dict[str, Any]] = Field(
        default_factory=list,
        description="Of the context directory: `path`, `type` (48 file, 53 directory), `content` (base64), "
        "`mode`.",
    )
    template_name: Name | None = None
    workspace_id: Id | None = None
    project_id: Id | None = Field(
        default=None, description="Ours: a project of its workspace, in place of `workspaceId`."
    )
    preview: bool = Field(
        default=False, description="Only check and complete the configuration, store nothing."
    )
    idempotency_key: IdempotencyKey | None = Field(
        default=None,
        description="Another request of the same user with this key is answered with the same task.",
    )

    def launch(
        self, kind: LaunchedKind[Any], template: StoredTemplate | None, place: Place
    ) -> Launch:
        """The launch that the request describes."""
        return Launch(
            kind,
            self.config,
            self.files,
            self._packed,
            template,
            place,
            asked=self,
            idempotency_key=self.idempotency_key,
        )


class NewPriority(BaseModel):
    """``SetCommandPriorityRequest``."""

    priority: Priority


class Rest(BaseModel):
    """``IdleNotebookRequest``. ``idle``: nobody uses it now."""

    idle: bool = False


@router.get("/tasks/count")
async def count_tasks(user: TaskReader, db: Db) -> dict[str, int]:
    """The number of open commands, notebooks, shells and TensorBoards."""
    kinds = [kind for kind in launched_kinds().values() if kind is not GENERIC]
    async with db.tx() as conn:
        return await counts(conn, kinds)


def _body_of(kind: LaunchedKind[Any]) -> type[NewTask]:
    """The body of the kind's launch: what all have, and the kind's own fields."""
    if kind.fields is LaunchFields:
        return NewTask
    bases: tuple[Any, ...] = (NewTask, kind.fields)
    return create_model(f"New{kind.title}", __base__=bases, __doc__=NewTask.__doc__)


def _add_routes(kind: LaunchedKind[Any]) -> None:
    noun, address = kind.noun, f"/{kind.plural}"
    one = f"{address}/{{task_id}}"
    body = _body_of(kind)

    async def read_launch(request: Request, user: Creator) -> AsyncIterator[NewTask]:
        """The body, read after the sender is known."""
        async with bodies_with_files.read(request, body) as given:
            yield given

    sent = Depends(read_launch)

    async def list_tasks(
        user: TaskReader,
        db: Db,
        viewer_of: ViewerOf,
        usernames: Annotated[ManyNames, Query(default_factory=list, alias="users")],
        userIds: Annotated[ManyIds, Query(default_factory=list)],
        workspaceId: Id = 0,
        sortBy: str = "SORT_BY_UNSPECIFIED",
        orderBy: OrderBy = "ORDER_BY_UNSPECIFIED",
        offset: Offset = 0,
        limit: Limit = 0,
    ) -> Response:
        """Those that match all the filters given, ended ones included; the latest first, if no order is
        given."""
        way = orderBy
        if way == "ORDER_BY_UNSPECIFIED" and sortBy == "SORT_BY_UNSPECIFIED":
            way = "ORDER_BY_DESC"
        statement = select_launched(kind)
        keys = (
            sa.select(tasks.c.id)
            .join(users, users.c.id == tasks.c.owner_id)
            .where(tasks.c.kind == kind.name)
        )
        wanted: list[sa.ColumnElement[bool]] = []
        if usernames:
            wanted.append(users.c.username.in_(usernames))
        if userIds:
            wanted.append(tasks.c.owner_id.in_(userIds))
        if workspaceId:
            wanted.append(tasks.c.workspace_id == workspaceId)
        order = ordered(SORT_KEYS, sortBy, way, tasks.c.id)
        statement, keys = (part.where(*wanted).order_by(*order) for part in (statement, keys))
        viewer = viewer_of(user)
        return await answer_list(
            db,
            kind.plural,
            statement,
            tasks.c.id,
            WEIGHT,
            each(lambda row: launched_json(row, kind, viewer)),
            offset=offset,
            limit=limit,
            keys=keys,
        )

    async def read_one(task_id: str, user: TaskReader, db: Db, viewer_of: ViewerOf) -> Response:
        """One, with its configuration, whose secrets and program are masked unless the owner or an
        administrator asks."""
        async with db.tx() as conn:
            row = await get_launched(conn, kind, task_id)
        viewer = viewer_of(user)
        config = viewer.task_config(row.config, row.owner_id, row.id, row.submitted_by)
        shown = launched_json(row, kind, viewer, alone=True)
        return JsonResponse({noun: shown, "config": config})

    async def kill_one(task_id: str, user: Killer, db: Db, viewer_of: ViewerOf) -> Response:
        """Kills its process, or takes it out of the queue; an ended task stays as it is."""
        async with changing(db) as change:
            await get_launched(change.conn, kind, task_id)
            await tasking.kill(change, task_id)
            row = await get_launched(change.conn, kind, task_id)
        return JsonResponse({noun: launched_json(row, kind, viewer_of(user))})

    async def set_priority(
        task_id: str,
        given: NewPriority,
        user: Changer,
        db: Db,
        viewer_of: ViewerOf,
        snapshots: SnapshotsOf,
    ) -> Response:
        """Its priority from now on, in the queue too. Ours: `remarks`, if the pool ignores it."""
        async with changing(db) as change:
            await get_launched(change.conn, kind, task_id)
            remarks = await set_task_priority(change, task_id, given.priority, snapshots.schedulers)
            row = await get_launched(change.conn, kind, task_id)
        return JsonResponse({noun: launched_json(row, kind, viewer_of(user)), "remarks": remarks})

    async def launch(
        user: Creator,
        db: Db,
        settings: SettingsOf,
        viewer_of: ViewerOf,
        given: NewTask = sent,
    ) -> Response:
        """Checks everything, then puts it into the queue. Ours: `remarks`, sentences."""
        template = None
        if given.template_name:
            async with reader(db).connect() as conn, as_asker(conn):
                template = await templates.find(conn, given.template_name)
        named = Named(workspace_id=given.workspace_id or None, project_id=given.project_id or None)
        place = await placing.of_task(db, user, given.config, template, named)
        launch = given.launch(kind, template, place)
        prepared = await launching.prepare(launch, settings)
        async with changing(db) as change:
            known = await launching.find_launched(change.conn, launch, user.user_id)
            if known is not None:
                row = await get_launched(change.conn, kind, known)
                viewer = viewer_of(user)
                config = viewer.task_config(row.config, row.owner_id, row.id, row.submitted_by)
                shown = launched_json(row, kind, viewer)
                return JsonResponse({noun: shown, "config": config, "warnings": []})
            planned = await launching.plan(change.conn, launch, prepared, settings, user.user_id)
            if given.preview:
                shown = planned_json(
                    planned.config, user.username, user.user_id, place.workspace_id
                )
                return JsonResponse({noun: shown, "config": planned.config, "warnings": []})
            task_id = await launching.store(
                change, launch, planned, settings, user.user_id, user.task
            )
            row = await get_launched(change.conn, kind, task_id)
            pool = planned.config["resources"]["resource_pool"]
            # What a kind adds, such as the mounts of the experiments of a TensorBoard, nobody has asked for.
            remarks = await surroundings.remarks(change.conn, prepared.config, pool, is_task=True)
            remarks += await programs.remarks(change.conn, kind.program, pool)
        return JsonResponse(
            {
                noun: launched_json(row, kind, viewer_of(user), alone=True),
                "config": planned.config,
                "warnings": list(planned.warnings),
                "remarks": [
                    *launching.remarks(planned.config),
                    *([no_agent(pool, "it")] if planned.warnings else []),
                    *remarks,
                    *planned.remarks,
                ],
            }
        )

    async def report_idle(task_id: str, given: Rest, process: Reporter, db: Db) -> Response:
        """Its own process reports whether it is in use; a task that is idle for its `idle_timeout` is
        ended."""
        async with db.tx() as conn:
            await idle.note_use(conn, task_id, in_use=not given.idle)
        return JsonResponse({})

    router.get(address, name=f"list_{kind.plural}")(list_tasks)
    router.get(one, name=f"read_{noun}")(read_one)
    router.post(f"{one}/kill", name=f"kill_{noun}")(kill_one)
    router.post(f"{one}/set_priority", name=f"set_priority_of_{noun}")(set_priority)
    if "idle_timeout" in kind.config_class.model_fields:
        router.put(f"{one}/report_idle", name=f"report_idle_{noun}")(report_idle)
    if kind.launches:
        described = bodies_with_files.described(body)
        router.post(address, name=f"launch_{noun}", openapi_extra=described)(launch)


for _kind in launched_kinds().values():
    if _kind is not GENERIC:
        _add_routes(_kind)
