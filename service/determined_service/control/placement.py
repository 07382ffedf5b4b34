"""The scheduler's doing: snapshot from the tables, :func:`~.scheduler.place`, assignments back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.auth import new_token, token_hash
from determined_service.control import lifecycle as states
from determined_service.control import prefect_states
from determined_service.control.change import Change, changing, reader
from determined_service.control.lifecycle import ALLOCATION, transition
from determined_service.control.scheduler import Agent, Placement, Request, Snapshot, place
from determined_service.db import Database
from determined_service.errors import Conflict
from determined_service.hub import Hub

SWEEP_S = 30.0
"""Seconds after which the queue is looked at even if nothing was announced (agents come back)."""

_REQUESTS = sa.text(
    """
    SELECT a.id, a.resource_pool, a.slots, a.experiment_id, a.trial_id,
           (e.config #>> '{resources,max_slots}')::int AS max_slots,
           ARRAY(SELECT DISTINCT m.agent_id FROM log_policy_matches m
                 WHERE m.trial_id = a.trial_id AND m.action = 'exclude_node'
                   AND m.agent_id IS NOT NULL) AS excluded
    FROM allocations a LEFT JOIN experiments e ON e.id = a.experiment_id
    WHERE a.state = 'REQUESTED'
    ORDER BY a.requested_at, a.trial_id, a.id
    """
)
_AGENTS = sa.text(
    """
    SELECT g.id, g.resource_pool,
           ARRAY(SELECT slot_id FROM slots s WHERE s.agent_id = g.id AND s.enabled
                 ORDER BY slot_id) AS slots,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(a.experiment_id, a.slot_ids)), '[]')
            FROM allocations a
            WHERE a.agent_id = g.id AND a.state IN ('ASSIGNED', 'RUNNING')) AS held
    FROM agents g
    WHERE g.enabled AND NOT g.draining
      AND g.last_heartbeat > now() - make_interval(secs => :timeout)
    ORDER BY g.id
    """
)


async def waiting_requests(conn: AsyncConnection) -> list[sa.Row[Any]]:
    """Every allocation that waits for slots, in the order in which they are served."""
    return list(await conn.execute(_REQUESTS))


async def read_snapshot(
    conn: AsyncConnection, waiting: Sequence[sa.Row[Any]], agent_timeout_s: float
) -> Snapshot:
    """The waiting requests, and the agents that may take them."""
    requests = tuple(
        Request(
            row.id,
            row.resource_pool,
            row.slots,
            row.experiment_id,
            row.max_slots,
            frozenset(row.excluded),
        )
        for row in waiting
    )
    used_by_group: Counter[int] = Counter()
    agents = []
    for row in await conn.execute(_AGENTS, {"timeout": agent_timeout_s}):
        used: set[int] = set()
        zero = 0
        for group, slot_ids in row.held:
            used.update(slot_ids)
            zero += not slot_ids
            if group is not None:
                used_by_group[group] += len(slot_ids)
        agents.append(Agent(row.id, row.resource_pool, tuple(row.slots), frozenset(used), zero))
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
    change.notify(f"agent:{placement.agent_id}")
    return moved


async def schedule_once(db: Database, agent_timeout_s: float) -> list[Placement]:
    """Makes the placements that are possible now."""
    async with reader(db).connect() as conn:
        rows = await waiting_requests(conn)
        if not rows:
            return []
        snapshot = await read_snapshot(conn, rows, agent_timeout_s)
    trial_of = {row.id: row.trial_id for row in rows}
    placements = place(snapshot)
    if not placements:
        return []
    made = []
    async with changing(db) as change:
        # In the order of the ids, as every change locks its rows.
        for placement in sorted(placements, key=lambda placement: placement.id):
            if await assign(change, placement):
                made.append(placement)
                prefect_states.assigned(
                    change,
                    trial_of[placement.id],
                    placement.agent_id,
                    list(placement.slot_ids),
                )
    return made


async def schedule_forever(db: Database, hub: Hub, agent_timeout_s: float) -> None:
    """Places whenever requests, slots or agents change."""

    async def once() -> None:
        await schedule_once(db, agent_timeout_s)

    while True:
        await hub.poll(["scheduler"], once, SWEEP_S)
