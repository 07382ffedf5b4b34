"""Resource pools: the one check that a pool is there."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.checks import show
from determined.expconf.problems import nearest
from determined_registry.database.tables import pools
from determined_service.base.errors import BadRequest

_NAMED = 50
"""Pools that a refusal lists."""


async def require_pool(conn: AsyncConnection, name: str, where: str) -> None:
    """Returns if the pool is in the cluster configuration; it stays there until the transaction ends.

    Raises BadRequest, with the nearest name and the list; ``where`` begins its sentence.
    """
    found = await conn.execute(
        sa.select(pools.c.name)
        .where(pools.c.name == name, ~pools.c.removed)
        .with_for_update(read=True)
    )
    if found.first() is not None:
        return
    listed = await conn.execute(
        sa.select(pools.c.name).where(~pools.c.removed).order_by(pools.c.name)
    )
    names = list(listed.scalars())
    meant = nearest(name, names)
    hint = f"; did you mean {meant!r}?" if meant else ""
    more = ", …" if len(names) > _NAMED else ""
    raise BadRequest(
        f"{where}: there is no resource pool {show(name)}{hint} (allowed: {', '.join(names[:_NAMED])}{more})"
    )
