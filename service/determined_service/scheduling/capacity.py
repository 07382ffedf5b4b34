"""Whether a request for slots can ever be met, asked when an experiment is submitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import ClusterConfig
from determined_service.base.errors import BadRequest
from determined_service.base.spread import Spread, could_hold
from determined_service.lifecycle.pools import require_pool

SLOTS_EXCEEDED = "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"
_FIELD = "resources.resource_pool"
_NOR = {
    Spread.NONE: ", and resources.is_single_node forbids several",
    Spread.EVEN: ", and whole agents with equal numbers of slots do not give that number",
    Spread.UNEVEN: ", and than all agents have together",
}


def pool_of(config: Mapping[str, Any], cluster: ClusterConfig) -> str | None:
    """The resource pool that a configuration names, else the default one; None if it must name one.

    The configuration may be incomplete or wrong.
    """
    resources = config.get("resources")
    given = resources if isinstance(resources, dict) else {}
    name, slots = given.get("resource_pool"), given.get("slots_per_trial")
    if isinstance(name, str) and name:
        return name
    return cluster.default_pool(1 if slots is None else slots)


async def check_slots(
    conn: AsyncConnection, config: Mapping[str, Any], cluster: ClusterConfig
) -> tuple[str, tuple[str, ...]]:
    """The resource pool of a complete configuration, and warnings.

    Raises BadRequest when there is no such pool, or when neither one of its agents nor several together are
    wide enough and the cluster refuses that (``launch_error``).
    """
    wanted = config["resources"]["slots_per_trial"]
    pool = pool_of(config, cluster)
    if pool is None:
        names = ", ".join(one.pool_name for one in cluster.resource_pools)
        raise BadRequest(
            f"{_FIELD}: required field is missing: this cluster has no default pool (there are {names})"
        )
    await require_pool(conn, pool, _FIELD)
    # Agents that were here within the last minutes: one that is just restarting counts.
    found = await conn.execute(
        sa.text(
            """
            SELECT g.id,
                   (SELECT count(*) FROM slots s WHERE s.agent_id = g.id AND s.enabled) AS n
            FROM agents g
            WHERE g.resource_pool = :pool AND g.last_heartbeat > now() - interval '5 minutes'
            ORDER BY n DESC, g.id
            """
        ),
        {"pool": pool},
    )
    sizes = {row.id: row.n for row in found}
    if not sizes:
        return pool, (SLOTS_EXCEEDED,) if wanted else ()
    alone = config["resources"].get("is_single_node")
    spread = Spread.of(alone, cluster.scheduler_of(pool).allow_heterogeneous_fits)
    if could_hold(wanted, Counter(sizes.values()), spread):
        return pool, ()
    if not cluster.launch_error:
        return pool, (SLOTS_EXCEEDED,)
    listed = ", ".join(f"{name} {count}" for name, count in list(sizes.items())[:8])
    raise BadRequest(
        f"resources.slots_per_trial: {wanted} slots are more than any agent of the resource "
        f"pool {pool!r} has{_NOR[spread]} (agents and their slots: {listed})"
    )
