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
from determined.expconf.heeding import KUBERNETES
from determined_registry.database.tables.people import FIRST
from determined_service.base.errors import BadRequest
from determined_service.base.records import record
from determined_service.base.spread import Spread, could_hold
from determined_service.base.units import units_of
from determined_service.lifecycle.pools import WorkspaceId, require_pool
from determined_service.scheduling.constraints import constraint_of
from determined_service.scheduling.snapshot import Constraint
from determined_service.scheduling.wording import NAMED, admitted, listed
from determined_service.state import presence

SLOTS_EXCEEDED = "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"
_FIELD = "resources.resource_pool"
_NOR = {
    Spread.NONE: ", and resources.is_single_node forbids several",
    Spread.EVEN: ", and whole {noun}s with equal numbers of slots do not give that number",
    Spread.UNEVEN: ", and than all {noun}s have together",
}
# ``here``: within the last minutes, so that one that is just restarting counts.
_AGENTS = sa.text(
    f"""
    SELECT g.id, g.labels, g.last_heartbeat > now() - interval '5 minutes' AS here,
           p.worker_type = '{KUBERNETES}' AS has_pods, s.slots
    FROM agents g JOIN pools p ON p.name = g.resource_pool
    LEFT JOIN (
        SELECT o.agent_id, json_agg(json_build_array(o.slot_id, o.machine) ORDER BY o.slot_id) AS slots
        FROM slots o WHERE {presence.is_usable("o")} GROUP BY o.agent_id
    ) s ON s.agent_id = g.id
    WHERE g.resource_pool = :pool
    """
)


@record
class _Place:
    """A unit of an agent, and how many of its slots are enabled. ``here``: as in the query."""

    name: str
    agent_id: str
    labels: Mapping[str, str]
    here: bool
    n: int


async def _places(conn: AsyncConnection, pool: str, cluster: ClusterConfig) -> list[_Place]:
    """The units of the pool's agents, the widest first."""
    most = cluster.max_slots_per_pod(pool)
    found = [
        _Place(unit.name, row.id, row.labels, row.here, len(unit.slots))
        for row in await conn.execute(_AGENTS, {"pool": pool})
        for unit in units_of(row.id, row.slots or (), most if row.has_pods else None)
    ]
    return sorted(found, key=lambda one: (-one.n, one.name))


def _sizes(here: Sequence[_Place]) -> tuple[str, str]:
    """What the places are called, and the widest of them with their slots, in words."""
    noun = "machine" if any(one.name != one.agent_id for one in here) else "agent"
    named = ", ".join(f"{one.name} {one.n}" for one in here[:NAMED])
    more = f", and {len(here) - NAMED} more" if len(here) > NAMED else ""
    return noun, f"{noun}s and their slots: {named}{more}"


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
    conn: AsyncConnection,
    config: Mapping[str, Any],
    cluster: ClusterConfig,
    workspace_id: WorkspaceId = FIRST,
) -> tuple[str, tuple[str, ...]]:
    """The resource pool of a complete configuration in a workspace, and warnings.

    Raises BadRequest when there is no such pool, or it is bound to other workspaces, or when neither one of
    its agents nor several together are wide enough or have what ``resources.placement`` asks for, and the
    cluster refuses that (``launch_error``).
    """
    resources = config["resources"]
    wanted, constraint = resources["slots_per_trial"], constraint_of(resources.get("placement"))
    pool = pool_of(config, cluster)
    if pool is None:
        names = ", ".join(one.pool_name for one in cluster.pools)
        raise BadRequest(
            f"{_FIELD}: required field is missing: this cluster has no default pool (there are {names})"
        )
    await require_pool(conn, pool, _FIELD, workspace_id)
    for index, name in enumerate((resources.get("fallback") or {}).get("pools") or ()):
        await require_pool(conn, name, f"resources.fallback.pools[{index}]", workspace_id)
        if name == pool:
            raise BadRequest(
                f"resources.fallback.pools[{index}]: {name!r} is the pool that it leads away from: leave it"
                " out"
            )
    every = await _places(conn, pool, cluster)
    here = [row for row in every if row.here]
    if not here:
        return pool, (SLOTS_EXCEEDED,)
    if constraint is not None:
        known = [row for row in every if constraint.admits(row.name, row.labels)]
        if not known and cluster.launch_error:
            raise BadRequest(_none_admitted(pool, constraint, here))
        here = [row for row in known if row.here]
    alone = resources.get("is_single_node")
    spread = Spread.of(alone, cluster.scheduler_of(pool).allow_heterogeneous_fits)
    if here and could_hold(wanted, Counter(row.n for row in here), spread):
        return pool, ()
    if not here or not cluster.launch_error:
        return pool, (SLOTS_EXCEEDED,)
    noun, sizes = _sizes(here)
    those = "" if constraint is None else " that resources.placement admits"
    nor = _NOR[spread].format(noun=noun) if len(here) > 1 else ""
    raise BadRequest(
        f"resources.slots_per_trial: {_more(wanted)} than any {noun} of the resource "
        f"pool {pool!r}{those} has{nor} ({sizes})"
    )


async def check_task_slots(
    conn: AsyncConnection,
    resources: Mapping[str, Any],
    cluster: ClusterConfig,
    workspace_id: WorkspaceId = FIRST,
) -> tuple[str, tuple[str, ...]]:
    """As :func:`check_slots`, of the ``resources`` of a task that is no trial: it never spreads.

    What no agent there holds is refused whatever ``launch_error`` says, as in Determined: somebody sits and
    waits for it.
    """
    slots = resources["slots"]
    pool = resources["resource_pool"] or cluster.default_pool(slots)
    if pool is None:
        names = ", ".join(one.pool_name for one in cluster.pools)
        raise BadRequest(
            f"{_FIELD}: required field is missing: this cluster has no default pool (there are {names})"
        )
    await require_pool(conn, pool, _FIELD, workspace_id)
    here = [row for row in await _places(conn, pool, cluster) if row.here]
    if not here:
        return pool, (SLOTS_EXCEEDED,)
    if could_hold(slots, Counter(row.n for row in here), Spread.NONE) or not slots:
        return pool, ()
    noun, sizes = _sizes(here)
    raise BadRequest(
        f"request unfulfillable: resources.slots: {_more(slots)} than any {noun} of the resource pool "
        f"{pool!r} has, and only trials run on several {noun}s ({sizes})"
    )


def no_agent(pool: str, whose: str) -> str:
    """The remark about what waits in a pool because of :data:`SLOTS_EXCEEDED`. ``whose``: what must fit."""
    return (
        f"resource pool {pool!r} has no agent now on which {whose} could run: it waits until one comes"
        f" (det agent start --pool {shlex.quote(pool)})"
    )


def _more(slots: int) -> str:
    return f"{counted(slots, 'slot')} {'is' if slots == 1 else 'are'} more"


def _none_admitted(pool: str, constraint: Constraint, here: Sequence[_Place]) -> str:
    names = sorted({row.agent_id for row in here})
    labels = sorted({f"{key}={value}" for row in here for key, value in row.labels.items()})
    have = f"labels: {listed(labels)}" if labels else "no labels"
    such = admitted(constraint).removeprefix("an ")
    return (
        f"resources.placement: resource pool {pool!r} knows no {such} (agents there: {listed(names)}; "
        f"{have}); with `launch_error: false` in the cluster configuration it would wait"
    )
