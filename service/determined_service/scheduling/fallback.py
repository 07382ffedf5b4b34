"""Fallback pools: an experiment that gets no slots goes on to the next pool by itself.

``resources.fallback`` of the experiment, else ``fallback`` of its pool in the cluster configuration. It moves
as a whole, when none of its trials has slots and either the first of them has waited for ``after_seconds``,
or all agents of the pool are lost. Trials that have slots stay where they are, and keep the others there.

A pool is skipped that has no agent now on which a trial could run, or in which config policies do not allow
the experiment. Nothing leads back: whoever wants that
moves the job.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import ClusterConfig
from determined.expconf.heeding import KUBERNETES
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest
from determined_service.base.spread import Spread, could_hold
from determined_service.base.units import units_of
from determined_service.lifecycle import trial_queue
from determined_service.lifecycle.experiments import lock_experiment
from determined_service.scheduling import job_changes
from determined_service.scheduling.constraints import constraint_of
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.state import presence, states
from determined_service.state.change import changing, reader

logger = logging.getLogger(__name__)

# What there was no room for has waited since the first of these legs in a row was requested.
_SINCE = """CASE WHEN a.unplaced_times = 0 THEN a.requested_at ELSE coalesce(
    (SELECT f.requested_at FROM allocations f
     WHERE f.task_id = a.task_id AND f.run_id = a.run_id - a.unplaced_times), a.requested_at) END"""
_WAITED_S = f"extract(epoch FROM now() - min({_SINCE}))::float8"
# The pools that are bound to workspaces, and not to the experiment's.
_CLOSED = """ARRAY(SELECT DISTINCT b.pool FROM pool_bindings b WHERE NOT EXISTS (
        SELECT FROM pool_bindings o JOIN projects p ON p.workspace_id = o.workspace_id
        WHERE o.pool = b.pool AND p.id = e.project_id)) AS closed"""
_WAITING = sa.text(
    f"""
    WITH live AS MATERIALIZED (
        SELECT experiment_id, {_WAITED_S} AS waited_s
        FROM allocations a WHERE state <> 'TERMINATED' AND experiment_id IS NOT NULL
        GROUP BY experiment_id HAVING bool_and(state = 'REQUESTED')
    )
    SELECT e.id, e.resource_pool, e.fallback, e.config -> 'resources' AS resources, l.waited_s, {_CLOSED}
    FROM live l JOIN experiments e ON e.id = l.experiment_id
    WHERE e.resource_pool = ANY(:pools) OR e.fallback IS NOT NULL
       OR e.config #> '{{resources,fallback,pools}}' IS NOT NULL
    ORDER BY e.id
    """
)
_ONE = sa.text(
    f"""
    SELECT e.id, e.resource_pool, e.fallback, e.config -> 'resources' AS resources, {_CLOSED}
    FROM experiments e WHERE e.id = :id
    """
)
_WAITED = sa.text(
    f"""
    SELECT {_WAITED_S} FROM allocations a
    WHERE experiment_id = :id AND state <> 'TERMINATED' HAVING bool_and(state = 'REQUESTED')
    """
)
_AGENTS = sa.text(
    f"""
    SELECT g.id, g.resource_pool, g.labels, g.enabled AND NOT g.draining AS open,
           {presence.is_alive()} AS alive,
           g.away IS DISTINCT FROM '{presence.ENDED}' AND {presence.is_kept()} AS kept,
           p.worker_type = '{KUBERNETES}' AS has_pods,
           (SELECT json_agg(json_build_array(s.slot_id, s.machine) ORDER BY s.slot_id) FROM slots s
            WHERE s.agent_id = g.id AND {presence.is_usable()} AND NOT s.draining) AS slots
    FROM agents g JOIN pools p ON p.name = g.resource_pool
    WHERE NOT p.removed
    """
)


@dataclass(frozen=True, slots=True)
class FallbackRoute:
    """Where an experiment goes from the pool in which it is: to one of ``ahead``, after so many seconds."""

    home: str
    ahead: tuple[str, ...]
    after_seconds: int

    def open_ahead(self, closed: Sequence[str]) -> list[str]:
        """Those of ``ahead`` that are not among the pools bound to other workspaces."""
        return [pool for pool in self.ahead if pool not in closed]


def route_of(
    pool: str,
    fallback: Mapping[str, str] | None,
    resources: Mapping[str, Any],
    cluster: ClusterConfig,
) -> FallbackRoute | None:
    """Of an experiment in ``pool``. ``fallback``, ``resources``: as its row and configuration have them.
    None: no pool comes after this one."""
    home = fallback["home"] if fallback else pool
    own = resources.get("fallback") or {}
    order = [home, *(own.get("pools") or cluster.fallback_route(home))]
    ahead = order[order.index(pool) + 1 :] if pool in order else []
    if not ahead:
        return None
    if own.get("pools"):
        return FallbackRoute(home, tuple(ahead), own["after_seconds"])
    # Of the pool in which it is, else of the one that led here.
    for name in reversed(order[: order.index(pool) + 1]):
        found = cluster.pool(name)
        if found is not None and found.fallback is not None:
            return FallbackRoute(home, tuple(ahead), found.fallback.after_seconds)
    return None


class Agents:
    """The agents of all pools, at one moment."""

    def __init__(self, rows: Sequence[sa.Row[Any]]) -> None:
        self._rows = rows

    @classmethod
    async def read(cls, conn: AsyncConnection, timeout_s: float, cluster: ClusterConfig) -> Agents:
        """``timeout_s``: how long an agent may be silent."""
        waits = json.dumps(cluster.reconnect_waits())
        return cls(list(await conn.execute(_AGENTS, {"timeout": timeout_s, "waits": waits})))

    def are_lost(self, pool: str) -> bool:
        """Whether the pool had agents, and all have ended, or were silent for longer than it waits."""
        mine = [row.kept for row in self._rows if row.resource_pool == pool]
        return bool(mine) and not any(mine)

    def first_fit(
        self, pools: Sequence[str], resources: Mapping[str, Any], cluster: ClusterConfig
    ) -> str | None:
        """The first of the pools with an agent, or several, on which a trial could run, if nothing else ran
        there."""
        constraint = constraint_of(resources.get("placement"))
        wanted = resources.get("slots_per_trial")
        wanted = 1 if wanted is None else wanted
        alone = resources.get("is_single_node")
        for pool in pools:
            most = cluster.max_slots_per_pod(pool)
            sizes = Counter(
                len(unit.slots)
                for row in self._rows
                if row.resource_pool == pool and row.alive and row.open
                for unit in units_of(row.id, row.slots or (), most if row.has_pods else None)
                if constraint is None or constraint.admits(unit.name, row.labels)
            )
            spread = Spread.of(alone, cluster.scheduler_of(pool).allow_heterogeneous_fits)
            if sizes and could_hold(wanted, sizes, spread):
                return pool
        return None


async def fall_back(db: Database, schedulers: PoolSchedulers, agent_timeout_s: float) -> list[int]:
    """Moves every experiment that is due; returns them."""
    cluster = schedulers.cluster
    named = [one.pool_name for one in cluster.pools if one.fallback is not None]
    async with reader(db).connect() as conn:
        waiting = list(await conn.execute(_WAITING, {"pools": named}))
        if not waiting:
            return []
        agents = await Agents.read(conn, agent_timeout_s, cluster)
    moved = []
    for row in waiting:
        route = route_of(row.resource_pool, row.fallback, row.resources, cluster)
        if route is None:
            continue
        lost = agents.are_lost(row.resource_pool)
        if not lost and row.waited_s < route.after_seconds:
            continue
        why = "has lost its agents" if lost else f"had no slots for it for {row.waited_s:.0f} s"
        ahead = route.open_ahead(row.closed)
        while (target := agents.first_fit(ahead, row.resources, cluster)) is not None:
            reason = f"moved to resource pool {target!r}, because {row.resource_pool!r} {why}"
            try:
                done = await _move(
                    db, row.id, row.resource_pool, target, reason, route.home, schedulers
                )
            except BadRequest:
                # Config policies keep it out of this pool: explain_fallback says so.
                ahead = ahead[ahead.index(target) + 1 :]
                continue
            if done:
                logger.info("experiment %s %s", row.id, reason)
                moved.append(row.id)
            break
    return moved


async def _move(
    db: Database,
    experiment_id: int,
    source: str,
    target: str,
    reason: str,
    home: str,
    schedulers: PoolSchedulers,
) -> bool:
    """False: it is no longer due. Raises BadRequest if it may not run in the pool ``target``."""
    async with changing(db) as change:
        row = await lock_experiment(change, experiment_id)
        live = await trial_queue.live_of_experiment(change, experiment_id)
        # A trial was given slots meanwhile, or somebody moved or stopped the experiment.
        still = live and all(one.state == states.REQUESTED for one in live)
        if row.state != states.ACTIVE or row.resource_pool != source or not still:
            return False
        await job_changes.move_to_pool(
            change,
            experiment_id,
            target,
            schedulers,
            reason=reason,
            fallback={"home": home, "reason": reason},
        )
        return True


async def explain_fallback(
    conn: AsyncConnection, experiment_id: int, schedulers: PoolSchedulers, agent_timeout_s: float
) -> list[str]:
    """What became of an experiment by fallback, and where it goes next, in sentences."""
    row = (await conn.execute(_ONE, {"id": experiment_id})).one_or_none()
    if row is None or row.resources is None:
        return []
    said = [row.fallback["reason"]] if row.fallback else []
    route = route_of(row.resource_pool, row.fallback, row.resources, schedulers.cluster)
    waited_s = (await conn.execute(_WAITED, {"id": experiment_id})).scalar_one_or_none()
    if route is None or waited_s is None:
        return said
    agents = await Agents.read(conn, agent_timeout_s, schedulers.cluster)
    ahead = []
    for pool in route.open_ahead(row.closed):
        try:
            await job_changes.require_allowed_there(conn, experiment_id, pool, schedulers)
            ahead.append(pool)
        except BadRequest as refusal:
            said.append(f"does not go to resource pool {pool!r}: {refusal.message}")
    if not ahead:
        return said
    pools = ", ".join(map(repr, ahead))
    target = agents.first_fit(ahead, row.resources, schedulers.cluster)
    if target is None:
        return [
            *said,
            f"stays: no agent is there now that could run its trials in its fallback pools ({pools})",
        ]
    left = max(0.0, route.after_seconds - waited_s)
    return [
        *said,
        f"goes on to resource pool {target!r} in {left:.0f} s, if none of its trials gets slots before",
    ]
