"""Whether a request for slots can ever be met, asked when an experiment is submitted."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import ClusterConfig
from determined.common.printable import counted
from determined_service.base.errors import BadRequest
from determined_service.base.spread import Spread, could_hold
from determined_service.lifecycle.pools import require_pool
from determined_service.scheduling.constraints import constraint_of
from determined_service.scheduling.snapshot import Constraint
from determined_service.scheduling.wording import NAMED, admitted, listed

SLOTS_EXCEEDED = "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"
_FIELD = "resources.resource_pool"
_NOR = {
    Spread.NONE: ", and resources.is_single_node forbids several",
    Spread.EVEN: ", and whole agents with equal numbers of slots do not give that number",
    Spread.UNEVEN: ", and than all agents have together",
}
# ``here``: within the last minutes, so that one that is just restarting counts.
_AGENTS = sa.text(
    """
    SELECT g.id, g.labels, g.last_heartbeat > now() - interval '5 minutes' AS here,
           count(s.agent_id) AS n
    FROM agents g LEFT JOIN slots s ON s.agent_id = g.id AND s.enabled
    WHERE g.resource_pool = :pool
    GROUP BY g.id
    ORDER BY n DESC, g.id
    """
)


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
    wide enough or have what ``resources.placement`` asks for, and the cluster refuses that
    (``launch_error``).
    """
    resources = config["resources"]
    wanted, constraint = resources["slots_per_trial"], constraint_of(resources.get("placement"))
    pool = pool_of(config, cluster)
    if pool is None:
        names = ", ".join(one.pool_name for one in cluster.resource_pools)
        raise BadRequest(
            f"{_FIELD}: required field is missing: this cluster has no default pool (there are {names})"
        )
    await require_pool(conn, pool, _FIELD)
    for index, name in enumerate((resources.get("fallback") or {}).get("pools") or ()):
        await require_pool(conn, name, f"resources.fallback.pools[{index}]")
        if name == pool:
            raise BadRequest(
                f"resources.fallback.pools[{index}]: {name!r} is the pool that it leads away from: leave it"
                " out"
            )
    every = list(await conn.execute(_AGENTS, {"pool": pool}))
    here = [row for row in every if row.here]
    if not here:
        return pool, (SLOTS_EXCEEDED,)
    if constraint is not None:
        known = [row for row in every if constraint.admits(row.id, row.labels)]
        if not known and cluster.launch_error:
            raise BadRequest(_none_admitted(pool, constraint, here))
        here = [row for row in known if row.here]
    alone = resources.get("is_single_node")
    spread = Spread.of(alone, cluster.scheduler_of(pool).allow_heterogeneous_fits)
    if here and could_hold(wanted, Counter(row.n for row in here), spread):
        return pool, ()
    if not here or not cluster.launch_error:
        return pool, (SLOTS_EXCEEDED,)
    sizes = ", ".join(f"{row.id} {row.n}" for row in here[:NAMED])
    those = "" if constraint is None else " that resources.placement admits"
    nor = _NOR[spread] if len(here) > 1 else ""
    raise BadRequest(
        f"resources.slots_per_trial: {_more(wanted)} than any agent of the resource "
        f"pool {pool!r}{those} has{nor} (agents and their slots: {sizes})"
    )


async def check_task_slots(
    conn: AsyncConnection, resources: Mapping[str, Any], cluster: ClusterConfig
) -> tuple[str, tuple[str, ...]]:
    """As :func:`check_slots`, of the ``resources`` of a task that is no trial: it never spreads.

    What no agent there holds is refused whatever ``launch_error`` says, as in Determined: somebody sits and
    waits for it.
    """
    slots = resources["slots"]
    pool = resources["resource_pool"] or cluster.default_pool(slots)
    if pool is None:
        names = ", ".join(one.pool_name for one in cluster.resource_pools)
        raise BadRequest(
            f"{_FIELD}: required field is missing: this cluster has no default pool (there are {names})"
        )
    await require_pool(conn, pool, _FIELD)
    here = [row for row in await conn.execute(_AGENTS, {"pool": pool}) if row.here]
    if not here:
        return pool, (SLOTS_EXCEEDED,)
    if could_hold(slots, Counter(row.n for row in here), Spread.NONE) or not slots:
        return pool, ()
    sizes = ", ".join(f"{row.id} {row.n}" for row in here[:NAMED])
    raise BadRequest(
        f"request unfulfillable: resources.slots: {_more(slots)} than any agent of the resource pool "
        f"{pool!r} has, and only trials run on several agents (agents and their slots: {sizes})"
    )


def no_agent(pool: str, whose: str) -> str:
    """The remark about what waits in a pool because of :data:`SLOTS_EXCEEDED`. ``whose``: what must fit."""
    return (
        f"resource pool {pool!r} has no agent now on which {whose} could run: it waits until one comes"
        f" (det agent start --pool {shlex.quote(pool)})"
    )


def _more(slots: int) -> str:
    return f"{counted(slots, 'slot')} {'is' if slots == 1 else 'are'} more"


def _none_admitted(pool: str, constraint: Constraint, here: Sequence[sa.Row[Any]]) -> str:
    names = sorted(row.id for row in here)
    labels = sorted({f"{key}={value}" for row in here for key, value in row.labels.items()})
    have = f"labels: {listed(labels)}" if labels else "no labels"
    such = admitted(constraint).removeprefix("an ")
    return (
        f"resources.placement: resource pool {pool!r} knows no {such} (agents there: {listed(names)}; "
        f"{have}); with `launch_error: false` in the cluster configuration it would wait"
    )
