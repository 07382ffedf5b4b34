"""What a scheduler sees, read from the tables: :class:`SnapshotReader`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.base.spread import Spread
from determined_service.scheduling.constraints import constraint_of
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.snapshot import (
    Agent,
    Constraint,
    Part,
    Request,
    Running,
    Snapshot,
)
from determined_service.state import states

_LIVE = sa.text(
    """
    WITH live AS MATERIALIZED (
        SELECT id, state, task_id, trial_id, experiment_id, resource_pool, slots, priority,
               preemptible, coalesce(in_line_since, requested_at) AS since, assigned_at,
               agent_id, slot_ids, nodes, stopping_for,
               preempt_requested_at IS NOT NULL OR kill_requested_at IS NOT NULL AS stopping
        FROM allocations WHERE state <> 'TERMINATED'
    ), owner AS MATERIALIZED (
        -- Once for each experiment: to take a long configuration apart costs more than all else.
        SELECT id, coalesce(queue_position, extract(epoch FROM start_time)::float8) AS position,
               (config #>> '{resources,max_slots}')::int AS max_slots,
               coalesce((config #>> '{resources,weight}')::float8, 1) AS weight,
               config #>> '{resources,placement}' AS placement,
               coalesce((config #>> '{resources,is_single_node}')::bool, false) AS single_node,
               CASE WHEN config #>> '{searcher,name}' = 'custom' THEN submitted_by END AS runner
        FROM experiments WHERE id IN (SELECT experiment_id FROM live)
    ), gang AS MATERIALIZED (
        SELECT allocation_id, jsonb_agg(jsonb_build_array(agent_id, slot_ids) ORDER BY node) AS parts
        FROM allocation_resources WHERE allocation_id IN (SELECT id FROM live WHERE nodes > 1)
        GROUP BY allocation_id
    ), banned AS MATERIALIZED (
        SELECT trial_id, array_agg(DISTINCT agent_id) AS agents FROM log_policy_matches
        WHERE action = 'exclude_node' AND agent_id IS NOT NULL
          AND trial_id IN (SELECT trial_id FROM live WHERE state = 'REQUESTED')
        GROUP BY trial_id
    )
    SELECT w.id, w.state, w.task_id, w.experiment_id, w.resource_pool, w.slots, w.priority, w.preemptible,
           extract(epoch FROM w.since)::float8 AS since, w.agent_id, w.slot_ids,
           w.stopping_for, w.stopping,
           coalesce(o.position, extract(epoch FROM w.since)::float8) AS position,
           o.max_slots, coalesce(o.weight, 1) AS weight, o.placement,
           coalesce(o.single_node, true) AS single_node, g.parts, o.runner, b.agents AS excluded
    FROM live w
    LEFT JOIN gang g ON g.allocation_id = w.id
    LEFT JOIN owner o ON o.id = w.experiment_id
    LEFT JOIN banned b ON b.trial_id = w.trial_id
    ORDER BY coalesce(w.assigned_at, w.since), w.trial_id, w.id
    """
)
_AGENTS = sa.text(
    """
    SELECT g.id, g.resource_pool, g.labels, s.ids AS slots
    FROM agents g
    LEFT JOIN (
        SELECT agent_id, array_agg(slot_id ORDER BY slot_id) AS ids
        FROM slots WHERE enabled GROUP BY agent_id
    ) s ON s.agent_id = g.id
    WHERE g.enabled AND NOT g.draining
      AND g.last_heartbeat > now() - make_interval(secs => :timeout)
    ORDER BY g.id
    """
)


async def live_allocations(conn: AsyncConnection) -> list[sa.Row[Any]]:
    """Every allocation that has not ended: what waits in the order in which it came, what runs in the order
    in which it was placed."""
    return list(await conn.execute(_LIVE))


class SnapshotReader:
    """Reads snapshots for the loop and for whoever explains what it decides.

    ``schedulers``: whose pools have default priorities. ``agent_timeout_s``: how long an agent may be silent.
    """

    def __init__(self, schedulers: PoolSchedulers, agent_timeout_s: float) -> None:
        self.schedulers = schedulers
        self.agent_timeout_s = agent_timeout_s

    async def read(
        self, conn: AsyncConnection, live: Sequence[sa.Row[Any]] | None = None
    ) -> Snapshot:
        """This moment's snapshot, from ``live`` if the caller has read that."""
        rows = await live_allocations(conn) if live is None else live
        agents = await conn.execute(_AGENTS, {"timeout": self.agent_timeout_s})
        return self._snapshot(rows, list(agents))

    def _snapshot(self, rows: Sequence[sa.Row[Any]], agents: Sequence[sa.Row[Any]]) -> Snapshot:
        runners = self._runners(rows)
        defaults: dict[str, int] = {}
        spreads: dict[str, Spread] = {}
        constraints: dict[str | None, Constraint | None] = {None: None}
        used_by_group: Counter[int] = Counter()
        used: dict[str, set[int]] = {}
        tasks: Counter[str] = Counter()
        requests: list[Request] = []
        running: list[Running] = []
        for (
            key, state, task, group, pool, slots, priority, preemptible, since, agent, slot_ids,
            stopping_for, stopping, position, limit, weight, placement, single_node,
            parts, _, excluded,
        ) in rows:  # fmt: skip
            # Unpacked, because reading thousands of rows by their columns' names takes twice as long.
            if priority is None:
                if pool not in defaults:
                    defaults[pool] = self.schedulers.default_priority(pool)
                priority = defaults[pool]
            if task in runners:
                first, place = runners[task]
                priority, position = min(priority, first), min(position, place)
            if state == states.REQUESTED:
                banned = frozenset(excluded or ())
                if placement not in constraints:
                    constraints[placement] = constraint_of(orjson.loads(placement))
                requests.append(
                    Request(
                        key, pool, slots, group, limit, banned, priority, weight, position,
                        preemptible, since, constraints[placement],
                        Spread.NONE if single_node else self._spread(pool, spreads),
                    )
                )  # fmt: skip
                continue
            others = () if parts is None else tuple(Part(a, tuple(ids)) for a, ids in parts[1:])
            if group is not None:
                used_by_group[group] += len(slot_ids) + sum(len(one.slot_ids) for one in others)
            if agent is None:
                continue
            used.setdefault(agent, set()).update(slot_ids)
            tasks[agent] += not slot_ids
            for part in others:
                used.setdefault(part.agent_id, set()).update(part.slot_ids)
            running.append(
                Running(
                    key, agent, tuple(slot_ids), group, limit, priority, weight, position,
                    preemptible, since, stopping, stopping_for, others,
                )
            )  # fmt: skip
        return Snapshot(
            tuple(requests),
            tuple(
                Agent(
                    one.id,
                    one.resource_pool,
                    tuple(one.slots or ()),
                    frozenset(used.get(one.id, ())),
                    tasks[one.id],
                    self.schedulers.max_zero_slot_tasks(one.resource_pool),
                    one.labels,
                )
                for one in agents
            ),
            used_by_group,
            tuple(running),
        )

    def _spread(self, pool: str, known: dict[str, Spread]) -> Spread:
        if pool not in known:
            known[pool] = Spread.of(False, self.schedulers.config(pool).allow_heterogeneous_fits)
        return known[pool]

    def _runners(self, rows: Sequence[sa.Row[Any]]) -> dict[str, tuple[int, float]]:
        """The tasks that run custom searches: a search waits for its runner, which therefore has the
        search's priority, if that is better than its own, and the place right before it."""
        found: dict[str, tuple[int, float]] = {}
        for row in rows:
            if row[-2] is None:
                continue
            priority = row.priority
            if priority is None:
                priority = self.schedulers.default_priority(row.resource_pool)
            place = math.nextafter(row.position, -math.inf)
            known = found.get(row.runner, (priority, place))
            found[row.runner] = (min(known[0], priority), min(known[1], place))
        return found
