"""Workspaces: found, made, changed, archived, pinned and deleted; and their projects."""

# Parameters and fields are named as in the API.
# ruff: noqa: N803, N815
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined_registry.database.tables import (
    pool_bindings,
    pools,
    projects,
    templates,
    users,
    workspaces,
)
from determined_service.access import assignments
from determined_service.access.dependencies import (
    Admission,
    WorkspaceReader,
    may,
)
from determined_service.access.principal import Principal
from determined_service.access.roles import WORKSPACE_ADMIN
from determined_service.access.rules import Action, authorise
from determined_service.access.targets import HomeWorkspace, Kind, Owners, Target
from determined_service.access.targets import Id as TargetId
from determined_service.base.bounds import Id, ManyIds, ManyNames, Name, Text
from determined_service.base.errors import Forbidden
from determined_service.base.json import JsonResponse
from determined_service.base.settings import Settings
from determined_service.lifecycle import place_deletion
from determined_service.lifecycle import workspaces as keeping
from determined_service.public.users import AgentUserGroup
from determined_service.state.change import changing, reader
from determined_service.views.lists import answer_list, each, weight
from determined_service.views.paging import Limit, Offset, OrderBy, fetch_page, ordered
from determined_service.views.workspaces import (
    PROJECT_SORT_KEYS,
    WORKSPACE_SORT_KEYS,
    contents,
    contents_beside,
    get_project,
    get_workspace,
    project_json,
    select_projects,
    select_workspaces,
    workspace_json,
)
from determined_service.web.router import Router
from determined_service.web.state import Db, OwnersOf, SettingsOf

router = Router("Workspaces", "/api/v1/workspaces")
ONE = "/{workspace_id}"

w, p = workspaces.c, projects.c
Names = Annotated[ManyNames, Query(default_factory=list)]
Ids = Annotated[ManyIds, Query(default_factory=list)]
Creator = Annotated[Principal, may(Action.CREATE, Kind.WORKSPACE)]
Changer = Annotated[Principal, may(Action.CHANGE, Kind.WORKSPACE)]
Pinner = Annotated[Principal, may(Action.PIN, Kind.WORKSPACE)]


class WorkspaceChange(BaseModel):
    """``v1PatchWorkspace``: what is null or left out stays; an empty storage, account or pool is
    taken away."""

    name: Name | None = None
    agentUserGroup: AgentUserGroup | None = None
    checkpointStorageConfig: dict[str, Any] | None = None
    defaultComputePool: Name | None = None
    defaultAuxPool: Name | None = None
    defaultComputeResourcePool: Name | None = Field(
        default=None, description="Another name of `defaultComputePool`."
    )
    defaultAuxResourcePool: Name | None = Field(
        default=None, description="Another name of `defaultAuxPool`."
    )

    async def values(
        self,
        conn: AsyncConnection,
        user: Principal,
        settings: Settings,
        workspace: HomeWorkspace | None = None,
    ) -> dict[str, Any]:
        """The columns to set. Raises BadRequest; Forbidden for the account on agents, which administrators
        set."""
        found: dict[str, Any] = {}
        if self.name is not None:
            found["name"] = keeping.check_name(self.name, "workspace")
        if self.agentUserGroup is not None:
            found["agent_user_group"] = self.agentUserGroup.column()
            if workspace is not None or found["agent_user_group"] is not None:
                number = None if workspace is None else workspace.id
                target = Target(Kind.WORKSPACE, number, into=workspace)
                authorise(user, Action.ADMINISTER, target, "set the account on agents of")
        if self.checkpointStorageConfig is not None:
            found["checkpoint_storage"] = keeping.check_storage(
                self.checkpointStorageConfig, settings.checkpoint_storage
            )
        for column, name, other in (
            ("default_compute_pool", "defaultComputePool", "defaultComputeResourcePool"),
            ("default_aux_pool", "defaultAuxPool", "defaultAuxResourcePool"),
        ):
            given = getattr(self, name) if getattr(self, name) is not None else getattr(self, other)
            if given is not None:
                found[column] = given or None
        await keeping.check_pools(conn, found, None if workspace is None else workspace.id)
        return found


class NewWorkspace(WorkspaceChange):
    """``v1PostWorkspaceRequest``."""

    name: Name


@router.get("")
async def list_workspaces(
    user: WorkspaceReader,
    db: Db,
    usernames: Annotated[ManyNames, Query(default_factory=list, alias="users")],
    userIds: Ids,
    name: Name = "",
    nameCaseSensitive: Name = "",
    archived: bool | None = None,
    pinned: bool | None = None,
    sortBy: str = "SORT_BY_UNSPECIFIED",
    orderBy: OrderBy = "ORDER_BY_ASC",
    offset: Offset = 0,
    limit: Limit = 0,
) -> Response:
    """The workspaces that match all filters. `name`: part of the name in any case; `nameCaseSensitive`: the
    whole name."""
    statement = select_workspaces(user).order_by(
        *ordered(WORKSPACE_SORT_KEYS, sortBy, orderBy, w.id)
    )
    if name:
        statement = statement.where(w.name.icontains(name, autoescape=True))
    if nameCaseSensitive:
        statement = statement.where(w.name == nameCaseSensitive)
    if archived is not None:
        statement = statement.where(w.archived == archived)
    if pinned is not None:
        is_pinned = statement.selected_columns.pinned_at.is_not(None)
        statement = statement.where(is_pinned if pinned else ~is_pinned)
    if usernames:
        statement = statement.where(users.c.username.in_(usernames))
    if userIds:
        statement = statement.where(w.owner_id.in_(userIds))
    return await answer_list(
        db,
        "workspaces",
        statement,
        w.id,
        weight(w.checkpoint_storage),
        each(lambda row: workspace_json(row, user)),
        offset=offset,
        limit=limit,
    )


@router.post("")
async def create_workspace(
    given: NewWorkspace, user: Creator, db: Db, settings: SettingsOf
) -> Response:
    """A new workspace, owned by the sender. Names are unique in any case of letters."""
    async with changing(db) as change:
        values = await given.values(change.conn, user, settings)
        name = values.pop("name")
        made = await keeping.create_workspace(change.conn, name, user.user_id, values)
        if user.rights is not None:
            # Whoever makes one administers it.
            own = assignments.Assignment(WORKSPACE_ADMIN, user_id=user.user_id, workspace_id=made)
            await assignments.assign(change.conn, [own])
        # Its new role counts from the next request on.
        found = await get_workspace(change.conn, made, replace(user, rights=None))
    return JsonResponse({"workspace": found, "namespaceBindings": {}})


@router.get(ONE)
async def read_workspace(workspace_id: Id, user: WorkspaceReader, db: Db) -> Response:
    """One workspace."""
    async with reader(db).connect() as conn:
        return JsonResponse({"workspace": await get_workspace(conn, workspace_id, user)})


@router.patch(ONE)
async def change_workspace(
    workspace_id: Id, given: WorkspaceChange, user: Changer, db: Db, settings: SettingsOf
) -> Response:
    """Changes the name, the checkpoint storage, the default pools, or (administrators) the account on agents
    of what runs in it."""
    async with changing(db) as change:
        row = await keeping.lock_workspace(change.conn, workspace_id, "be changed")
        keeping.require_not_archived(row, "workspace", "be changed")
        values = await given.values(change.conn, user, settings, HomeWorkspace(row.id, row.name))
        await keeping.change_workspace(change.conn, workspace_id, values)
        return JsonResponse(
            {
                "workspace": await get_workspace(change.conn, workspace_id, user),
                "namespaceBindings": {},
            }
        )


@router.get(f"{ONE}/contents")
async def read_contents(workspace_id: Id, user: WorkspaceReader, db: Db) -> Response:
    """Counts of what a deletion takes with it (`contents`), of what has to end before, and of models, which
    have to leave before. Ours."""
    async with reader(db).connect() as conn:
        await get_workspace(conn, workspace_id, user)
        found = await contents(conn, p.workspace_id == workspace_id)
        found |= await contents_beside(conn, workspace_id)
    return JsonResponse({"contents": found})


@router.delete(ONE)
async def delete_workspace(
    workspace_id: Id,
    user: Annotated[Principal, may(Action.DELETE, Kind.WORKSPACE)],
    db: Db,
    owners: OwnersOf,
) -> Response:
    """Requests the deletion of a workspace with its projects, experiments (checkpoints, logs, Prefect runs),
    pipelines, templates and ended tasks.

    409 while something runs in it, or models are in it; 403 if something in it is another user's, which only
    administrators delete. The workspace is DELETING until it is gone (`completed`: whether it is already), or
    DELETE_FAILED with a reason; then the deletion may be requested again.
    """
    async with reader(db).connect() as conn:
        ids = await place_deletion.experiments_in(conn, workspace_id=workspace_id)
        inner = list(await conn.scalars(sa.select(p.id).where(p.workspace_id == workspace_id)))
        named = sa.select(templates.c.name).where(templates.c.workspace_id == workspace_id)
        names = list(await conn.scalars(named))
    await require_all(
        user, owners, {Kind.PROJECT: inner, Kind.EXPERIMENT: ids, Kind.TEMPLATE: names}
    )
    async with changing(db) as change:
        await place_deletion.request_workspace(change, workspace_id)
    await place_deletion.retry_failed(db, ids)
    return JsonResponse({"completed": False})


async def require_all(
    user: Principal, owners: Owners, within: dict[Kind, Sequence[TargetId]]
) -> None:
    """Raises Forbidden unless the user may delete each of these."""
    for kind, ids in within.items():
        admission = Admission(user, Action.DELETE, kind, "delete", owners)
        _, refused = await admission.refusals(ids)
        for refusal in refused.values():
            if isinstance(refusal, Forbidden):
                raise Forbidden(f"nothing was deleted: {refusal.message}")


@router.post(f"{ONE}/archive")
async def archive_workspace(
    workspace_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.WORKSPACE, "archive")],
    db: Db,
) -> Response:
    """Archives the workspace and its projects: nothing can be made in them until it is unarchived."""
    async with changing(db) as change:
        await keeping.archive_workspace(change.conn, workspace_id, True)
    return JsonResponse({})


@router.post(f"{ONE}/unarchive")
async def unarchive_workspace(
    workspace_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.WORKSPACE, "unarchive")],
    db: Db,
) -> Response:
    """Opens an archived workspace again; projects that were archived by themselves stay so."""
    async with changing(db) as change:
        await keeping.archive_workspace(change.conn, workspace_id, False)
    return JsonResponse({})


@router.post(f"{ONE}/pin")
async def pin_workspace(workspace_id: Id, user: Pinner, db: Db) -> Response:
    """Pins the workspace for the sender alone."""
    return await _pin(db, workspace_id, user, True)


@router.post(f"{ONE}/unpin")
async def unpin_workspace(workspace_id: Id, user: Pinner, db: Db) -> Response:
    """Takes the sender's pin away."""
    return await _pin(db, workspace_id, user, False)


async def _pin(db: Db, workspace_id: int, user: Principal, pinned: bool) -> Response:
    async with changing(db) as change:
        await get_workspace(change.conn, workspace_id, user)
        await keeping.pin(change.conn, workspace_id, user.user_id, pinned)
    return JsonResponse({})


@router.get(f"{ONE}/projects")
async def list_projects(
    workspace_id: Id,
    user: WorkspaceReader,
    db: Db,
    usernames: Annotated[ManyNames, Query(default_factory=list, alias="users")],
    userIds: Ids,
    name: Name = "",
    archived: bool | None = None,
    sortBy: str = "SORT_BY_UNSPECIFIED",
    orderBy: OrderBy = "ORDER_BY_ASC",
    offset: Offset = 0,
    limit: Limit = 0,
    brief: bool = False,
) -> Response:
    """The projects of a workspace (0: of all) that match all filters; `name`: part of the name. Ours:
    `brief` leaves out the numbers of experiments and runs."""
    order = ordered(PROJECT_SORT_KEYS, sortBy, orderBy, p.id)
    statement = select_projects(user, brief=brief).order_by(*order)
    if workspace_id:
        async with reader(db).connect() as conn:
            await get_workspace(conn, workspace_id, user)
        statement = statement.where(p.workspace_id == workspace_id)
    if name:
        statement = statement.where(p.name.icontains(name, autoescape=True))
    if archived is not None:
        is_archived = sa.or_(p.archived, w.archived)
        statement = statement.where(is_archived if archived else ~is_archived)
    if usernames:
        statement = statement.where(users.c.username.in_(usernames))
    if userIds:
        statement = statement.where(p.owner_id.in_(userIds))
    return await answer_list(
        db,
        "projects",
        statement,
        p.id,
        weight(p.notes, p.description),
        each(project_json),
        offset=offset,
        limit=limit,
    )


class NewProject(BaseModel):
    """``v1PostProjectRequest``."""

    name: Name
    description: Text | None = None
    key: Name | None = Field(default=None, description="1 to 5 capital letters and digits.")


@router.post(f"{ONE}/projects")
async def create_project(
    workspace_id: Id,
    given: NewProject,
    user: Annotated[Principal, may(Action.CREATE, Kind.PROJECT)],
    db: Db,
) -> Response:
    """A new project of the workspace, owned by the sender. Names are unique in the workspace, keys in the
    cluster."""
    name = keeping.check_name(given.name, "project")
    key = keeping.check_key(given.key) if given.key else None
    async with changing(db) as change:
        await get_workspace(change.conn, workspace_id, user)
        made = await keeping.create_project(
            change.conn,
            workspace_id,
            name,
            user.user_id,
            description=given.description or "",
            key=key,
        )
        found = await get_project(change.conn, user, p.id == made, made)
    return JsonResponse({"project": found})


@router.get(f"{ONE}/available-resource-pools")
async def list_pools(
    workspace_id: Id, user: WorkspaceReader, db: Db, offset: Offset = 0, limit: Limit = 0
) -> Response:
    """The names of the resource pools that what is in the workspace may use: those that are bound to it, and
    those that are bound to none."""
    b = pool_bindings.c
    bound = sa.select(b.pool).where(b.pool == pools.c.name)
    statement = (
        sa.select(pools.c.name)
        .where(
            ~pools.c.removed,
            sa.or_(~sa.exists(bound), sa.exists(bound.where(b.workspace_id == workspace_id))),
        )
        .order_by(pools.c.name)
    )
    async with reader(db).connect() as conn:
        await get_workspace(conn, workspace_id, user)
        rows, pages = await fetch_page(conn, statement, offset, limit)
    return JsonResponse({"resourcePools": [row.name for row in rows], "pagination": pages})
