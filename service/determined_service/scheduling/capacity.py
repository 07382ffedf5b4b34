"""Whether a request for slots can ever be met, asked when an experiment is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.base.errors import BadRequest

DEFAULT_POOL = "default"
SLOTS_EXCEEDED = "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"


async def check_slots(
    conn: AsyncConnection, config: Mapping[str, Any]
) -> tuple[str, tuple[str, ...]]:
    """The resource pool, and warnings. Raises BadRequest when no agent of it is wide enough."""
    resources = config.get("resources") or {}
    pool = resources.get("resource_pool") or DEFAULT_POOL
    wanted = resources.get("slots_per_trial", 1)
    # Agents that were here within the last minutes: one that is just restarting counts.
    found = await conn.execute(
        sa.text(
            """
            SELECT p.name, g.id,
                   (SELECT count(*) FROM slots s WHERE s.agent_id = g.id AND s.enabled) AS n
            FROM pools p LEFT JOIN agents g ON g.resource_pool = p.name AND p.name = :pool
                AND g.last_heartbeat > now() - interval '5 minutes'
            ORDER BY n DESC, g.id
            """
        ),
        {"pool": pool},
    )
    rows = found.all()
    names = {row.name for row in rows}
    if pool not in names:
        raise BadRequest(
            f"resources.resource_pool: there is no resource pool {pool!r}; there are "
            f"{', '.join(sorted(names))}"
        )
    sizes = {row.id: row.n for row in rows if row.id is not None}
    if not sizes:
        return pool, (SLOTS_EXCEEDED,) if wanted else ()
    widest = next(iter(sizes))
    if wanted > sizes[widest]:
        listed = ", ".join(f"{name} {count}" for name, count in list(sizes.items())[:8])
        raise BadRequest(
            f"resources.slots_per_trial: {wanted} slots are more than any agent of the resource "
            f"pool {pool!r} has (agents and their slots: {listed})"
        )
    return pool, ()
