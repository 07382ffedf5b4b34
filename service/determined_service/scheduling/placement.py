"""The scheduling loop: a snapshot from the tables, the scheduler's decision, assignments back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.access.tokens import new_token, token_hash
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.errors import Conflict
from determined_service.base.hub import Hub
from determined_service.scheduling.first_in_first_out import FirstInFirstOut
from determined_service.scheduling.scheduler import Placement, Scheduler
from determined_service.scheduling.snapshot import Agent, Request, Snapshot
from determined_service.state import prefect_states, states
from determined_service.state.change import Change, changing, reader
from determined_service.state.states import ALLOCATION, transition

SCHEDULER: Final[Scheduler] = FirstInFirstOut()
"""The scheduler of every pool."""
SWEEP_S = 30.0
"""Seconds after which the queue is looked at even if nothing was announced (agents come back)."""

_REQUESTS = sa.text(
    """
    WITH waiting AS MATERIALIZED (
        SELECT id, task_id, trial_id, experiment_id, resource_pool, slots, priority, preemptible,
               requested_at
        FROM allocations WHERE state = 'REQUESTED'
    ), owner AS MATERIALIZED (
        -- Once for each experiment: to take a long configuration apart costs more than all else.
        SELECT id, extract(epoch FROM start_time)::float8 AS submitted,
               (config #>> '{resources,max_slots}')::int AS max_slots,
               coalesce((config #>> '{resources,weight}')::float8, 1) AS weight,
               CASE WHEN config #>> '{searcher,name}' = 'custom' THEN submitted_by END AS runner
        FROM experiments WHERE id IN (SELECT experiment_id FROM waiting)
    ), runner AS MATERIALIZED (
        -- A search waits for its runner: that takes the place of the search's first trial in line.
        SELECT o.runner AS task_id, min(w.requested_at) AS place
        FROM waiting w JOIN owner o ON o.id = w.experiment_id
        WHERE o.runner IS NOT NULL GROUP BY o.runner
    ), banned AS MATERIALIZED (
        SELECT trial_id, array_agg(DISTINCT agent_id) AS agents FROM log_policy_matches
        WHERE action = 'exclude_node' AND agent_id IS NOT NULL
          AND trial_id IN (SELECT trial_id FROM waiting)
        GROUP BY trial_id
    )
    SELECT w.id, w.task_id, w.experiment_id, w.resource_pool, w.slots, w.priority, w.preemptible,
           coalesce(o.submitted, extract(epoch FROM w.requested_at)::float8) AS submitted,
           o.max_slots, coalesce(o.weight, 1) AS weight, b.agents AS excluded
    FROM waiting w
    LEFT JOIN owner o ON o.id = w.experiment_id
    LEFT JOIN banned b ON b.trial_id = w.trial_id
    LEFT JOIN runner r ON r.task_id = w.task_id
    ORDER BY least(w.requested_at, r.place), r.place IS NULL, w.trial_id, w.id
    """
)
# A row without an agent: what is held on agents that may not be given work.
_AGENTS = sa.text(
    """
    SELECT g.id, g.resource_pool, s.ids AS slots, h.held
    FROM (
        SELECT id, resource_pool FROM agents
        WHERE enabled AND NOT draining
          AND last_heartbeat > now() - make_interval(secs => :timeout)
    ) g
    LEFT JOIN (
        SELECT agent_id, array_agg(slot_id ORDER BY slot_id) AS ids
        FROM slots WHERE enabled GROUP BY agent_id
    ) s ON s.agent_id = g.id
    FULL JOIN (
        SELECT agent_id, jsonb_agg(jsonb_build_array(experiment_id, slot_ids)) AS held
        FROM allocations WHERE state IN ('ASSIGNED', 'RUNNING') GROUP BY agent_id
    ) h ON h.agent_id = g.id
    ORDER BY g.id
    """
)


async def waiting_requests(conn: AsyncConnection) -> list[sa.Row[Any]]:
    """Every allocation that waits for slots, in the order in which they are served."""
    return list(await conn.execute(_REQUESTS))


def _request(row: sa.Row[Any]) -> Request:
    # Unpacked, because reading thousands of rows by their columns' names takes twice as long.
    key, _, group, pool, slots, priority, preemptible, submitted, limit, weight, excluded = row
    banned = frozenset(excluded or ())
    return Request(key, pool, slots, group, limit, banned, priority, weight, submitted, preemptible)


async def read_snapshot(
    conn: AsyncConnection, waiting: Sequence[sa.Row[Any]], agent_timeout_s: float
) -> Snapshot:
    """The waiting requests, and the agents that may take them."""
    requests = tuple(map(_request, waiting))
    used_by_group: Counter[int] = Counter()
    agents = []
    for row in await conn.execute(_AGENTS, {"timeout": agent_timeout_s}):
        used: set[int] = set()
        zero = 0
        for group, slot_ids in row.held or ():
            used.update(slot_ids)
            zero += not slot_ids
            if group is not None:
                used_by_group[group] += len(slot_ids)
        if row.id is not None:
            slots = tuple(row.slots or ())
            agents.append(Agent(row.id, row.resource_pool, slots, frozenset(used), zero))
    return Snapshot(requests, tuple(agents), used_by_group)


async def assign(change: Change, placement: Placement) -> bool:
    """REQUESTED → ASSIGNED with a fresh token; False when the request is gone."""
    token = new_token()
    try:
        moved = await transition(
            change,
            ALLOCATION,
            placement.id,
            states.ASSIGNED,
            agent_id=placement.agent_id,
            slot_ids=list(placement.slot_ids),
            token=token,
            token_hash=token_hash(token),
        )
    except Conflict:
        return False
    change.notify(topics.agent(placement.agent_id))
    return moved


async def schedule_once(db: Database, agent_timeout_s: float) -> list[Placement]:
    """Makes the placements that are possible now."""
    async with reader(db).connect() as conn:
        rows = await waiting_requests(conn)
        if not rows:
            return []
        snapshot = await read_snapshot(conn, rows, agent_timeout_s)
    placements = SCHEDULER.decide(snapshot).placements
    if not placements:
        return []
    task_of = {row.id: row.task_id for row in rows}
    made = []
    async with changing(db) as change:
        # In the order of the ids, as every change locks its rows.
        for placement in sorted(placements, key=lambda placement: placement.id):
            if await assign(change, placement):
                made.append(placement)
                prefect_states.assigned(
                    change,
                    task_of[placement.id],
                    placement.agent_id,
                    list(placement.slot_ids),
                )
    return made


async def schedule_forever(db: Database, hub: Hub, agent_timeout_s: float) -> None:
    """Places whenever requests, slots or agents change."""

    async def once() -> None:
        await schedule_once(db, agent_timeout_s)

    while True:
        await hub.poll([topics.SCHEDULER], once, SWEEP_S)
