"""Resource pools: the one check that a pool is there."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.checks import show
from determined.expconf.problems import nearest
from determined_registry.database.tables import pool_bindings, pools, workspaces
from determined_registry.database.tables.people import FIRST
from determined_service.base.errors import BadRequest

WorkspaceId = int | sa.ScalarSelect[Any]
"""A workspace's id, or what selects it."""
_NAMED = 50
"""Pools that a refusal lists."""


def _is_open(workspace_id: WorkspaceId | None) -> sa.ColumnElement[bool]:
    """The pools that the workspace may use: those bound to none, and those bound to it."""
    b = pool_bindings.c
    if workspace_id is None:
        return sa.true()
    bound = sa.select(b.workspace_id).where(b.pool == pools.c.name)
    return sa.or_(~sa.exists(bound), sa.exists(bound.where(b.workspace_id == workspace_id)))


async def require_pool(
    conn: AsyncConnection, name: str, where: str, workspace_id: WorkspaceId | None = FIRST
) -> None:
    """Returns if the pool is in the cluster configuration and the workspace may use it; it stays there until
    the transaction ends. ``workspace_id`` None: of no workspace, such as an agent.

    Raises BadRequest, with the nearest name and the list; ``where`` begins its sentence.
    """
    is_open = _is_open(workspace_id)
    found = await conn.execute(
        sa.select(pools.c.name, is_open.label("is_open"))
        .where(pools.c.name == name, ~pools.c.removed)
        .with_for_update(read=True, of=pools)
    )
    row = found.first()
    if row is not None and row.is_open:
        return
    listed = await conn.execute(
        sa.select(pools.c.name).where(~pools.c.removed, is_open).order_by(pools.c.name)
    )
    names = list(listed.scalars())
    more = ", …" if len(names) > _NAMED else ""
    allowed = f"{', '.join(names[:_NAMED])}{more}"
    if row is not None:
        workspace = await conn.scalar(
            sa.select(workspaces.c.name).where(workspaces.c.id == workspace_id)
        )
        raise BadRequest(
            f"{where}: resource pool {show(name)} is bound to workspaces (det resource-pool bindings "
            f"list-workspaces {name} shows them), and {workspace!r} is none of them (allowed: {allowed})"
        )
    meant = nearest(name, names)
    hint = f"; did you mean {meant!r}?" if meant else ""
    raise BadRequest(f"{where}: there is no resource pool {show(name)}{hint} (allowed: {allowed})")
