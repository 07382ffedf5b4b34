"""Which workspaces may use a resource pool."""

# Fields are named as in the API.
# ruff: noqa: N815
from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined_registry.database.tables import pool_bindings, pools, workspaces
from determined_service.access.dependencies import ClusterReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.access.visible import visible
from determined_service.base.bounds import ManyIds, ManyNames, Name
from determined_service.base.errors import BadRequest, NotFound
from determined_service.base.json import JsonResponse
from determined_service.base.settings import Settings
from determined_service.lifecycle import places
from determined_service.lifecycle import workspaces as keeping
from determined_service.state.change import changing, reader
from determined_service.views.paging import Limit, Offset, fetch_page
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Workspaces", "/api/v1/resource-pools/{pool_name}")
PATH = "/workspace-bindings"
Binder = Annotated[Principal, may(Action.ADMINISTER, Kind.CLUSTER, "bind resource pools of")]


class Bindings(BaseModel):
    """``v1BindRPToWorkspaceRequest``: workspaces by name, by id, or both."""

    workspaceIds: ManyIds = Field(default_factory=list)
    workspaceNames: ManyNames = Field(default_factory=list)

    async def ids(self, conn: AsyncConnection, user: Principal) -> list[int]:
        """The workspaces. Raises NotFound."""
        found = set(self.workspaceIds)
        for name in self.workspaceNames:
            one = await places.workspace_named(conn, user, name, None)
            if one is not None:
                found.add(one)
        return sorted(found)


def _refuse_default(pool: str, settings: Settings) -> None:
    if pool in (settings.cluster.default_pool(0), settings.cluster.default_pool(1)):
        raise BadRequest(
            f"resource pool {pool!r} is a default pool of the cluster, which every workspace may use: it "
            "cannot be bound"
        )


@router.get(PATH)
async def list_bindings(
    pool_name: Name, user: ClusterReader, db: Db, offset: Offset = 0, limit: Limit = 0
) -> Response:
    """The ids of the workspaces to which the pool is bound; none: every workspace may use it."""
    b = pool_bindings.c
    statement = (
        sa.select(b.workspace_id)
        .join(workspaces, workspaces.c.id == b.workspace_id)
        .where(b.pool == pool_name, visible(user, Kind.WORKSPACE, workspaces.c.id))
        .order_by(b.workspace_id)
    )
    async with reader(db).connect() as conn:
        known = sa.select(pools.c.name).where(pools.c.name == pool_name, ~pools.c.removed)
        if await conn.scalar(known) is None:
            raise NotFound(f"resource pool {pool_name!r} does not exist")
        rows, pages = await fetch_page(conn, statement, offset, limit)
    return JsonResponse({"workspaceIds": [row.workspace_id for row in rows], "pagination": pages})


@router.post(PATH)
async def add_bindings(
    pool_name: Name, given: Bindings, user: Binder, db: Db, settings: SettingsOf
) -> Response:
    """Binds the pool to further workspaces: no other may use it from now on. What runs or waits goes on."""
    _refuse_default(pool_name, settings)
    async with changing(db) as change:
        ids = await given.ids(change.conn, user)
        if not ids:
            raise BadRequest("no workspace is named: send workspaceIds or workspaceNames")
        await keeping.bind(change.conn, pool_name, ids, replace=False)
    return JsonResponse({})


@router.put(PATH)
async def replace_bindings(
    pool_name: Name, given: Bindings, user: Binder, db: Db, settings: SettingsOf
) -> Response:
    """Binds the pool to these workspaces alone; without any, every workspace may use it."""
    async with changing(db) as change:
        ids = await given.ids(change.conn, user)
        if ids:
            _refuse_default(pool_name, settings)
        await keeping.bind(change.conn, pool_name, ids, replace=True)
    return JsonResponse({})


@router.delete(PATH)
async def remove_bindings(pool_name: Name, given: Bindings, user: Binder, db: Db) -> Response:
    """Takes workspaces away from those to which the pool is bound; when none is left, every workspace may use
    it."""
    async with changing(db) as change:
        ids = await given.ids(change.conn, user)
        await keeping.unbind(change.conn, pool_name, ids)
    return JsonResponse({})
