"""The scheduling loop: a snapshot from the tables, the decision, assignments and preemptions back.

A decision is carried out in one transaction, which looks again at each row that it changes: what ended, was
withdrawn or is being stopped since the snapshot was read stays as it is. So a loop that is killed before the
commit has done nothing, and its successor decides anew; killed after it, the successor reads in the rows what
was asked to stop, and for whom.
"""

from __future__ import annotations

import asyncio
import time

import sqlalchemy as sa

from determined_registry.database.tables import allocation_resources
from determined_service.access.tokens import new_token, token_hash
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.errors import Conflict
from determined_service.base.hub import Hub
from determined_service.base.units import agent_of
from determined_service.lifecycle import allocations as allocating
from determined_service.scheduling.reading import SnapshotReader
from determined_service.scheduling.scheduler import Decision, Placement, Preemption
from determined_service.state import prefect_states, states
from determined_service.state.change import Change, changing, reader
from determined_service.state.states import ALLOCATION, transition

SWEEP_S = 30.0
"""Seconds after which the queue is looked at even if nothing was announced (agents come back)."""


LONG_PASS_S = 0.02
REST_MOST_S = 1.0


def rest_after(took: float) -> float:
    """Seconds without a pass after one that took ``took`` seconds.

    Each submission and each end of a leg wakes the loop, and a pass reads the whole queue: without a rest
    many submissions into a long queue would cost a pass each. So one pass answers for all that came
    meanwhile, and passes take at most half of the loop's time. The first after a quiet time comes at once.
    """
    return min(took, REST_MOST_S) if took > LONG_PASS_S else 0.0


async def assign(change: Change, placement: Placement) -> bool:
    """REQUESTED → ASSIGNED with a fresh token, with all nodes of a gang; False: the request is gone."""
    token = new_token()
    try:
        moved = await transition(
            change,
            ALLOCATION,
            placement.id,
            states.ASSIGNED,
            agent_id=agent_of(placement.agent_id),
            slot_ids=list(placement.slot_ids),
            nodes=len(placement.parts),
            token=token,
            token_hash=token_hash(token),
            waits_for=None,
        )
    except Conflict:
        return False
    if moved and placement.others:
        nodes = [
            {
                "allocation_id": placement.id,
                "id": f"{placement.id}.{node}",
                "agent_id": agent_of(part.agent_id),
                "slot_ids": list(part.slot_ids),
                "node": node,
            }
            for node, part in enumerate(placement.parts)
        ]
        await change.conn.execute(sa.insert(allocation_resources), nodes)
    change.notify(*(topics.agent(agent_of(part.agent_id)) for part in placement.parts))
    return moved


async def schedule_once(db: Database, snapshots: SnapshotReader) -> Decision:
    """Makes the placements and preemptions that are due now; returns those that were made."""
    async with reader(db).connect() as conn:
        live = await snapshots.live(conn)
        # What runs is of interest where something waits for it, or may hold too much.
        if not live.is_waited_for:
            snapshots.rest_s = None
            return Decision((), ())
        snapshot = await snapshots.read(conn, live)
    decision = await snapshots.schedulers.decide_beside(snapshot)
    if not decision.placements and not decision.preemptions:
        return decision
    due: list[Placement | Preemption] = [*decision.placements, *decision.preemptions]
    placed, stopped = [], []
    async with changing(db) as change:
        # In the order of the ids, as every change locks its rows.
        for one in sorted(due, key=lambda one: one.id):
            if isinstance(one, Preemption):
                if await allocating.stop_for(change, one.id, one.request_id):
                    stopped.append(one)
            elif await assign(change, one):
                placed.append(one)
                prefect_states.assigned(change, live.rows[one.id].task_id, one.parts)
    return Decision(tuple(placed), decision.waiting, tuple(stopped))


async def schedule_forever(db: Database, hub: Hub, snapshots: SnapshotReader) -> None:
    """Decides whenever requests, slots or agents change."""

    async def once() -> None:
        began = time.monotonic()
        await schedule_once(db, snapshots)
        if (rest_s := snapshots.rest_s) is not None:
            hub.wake_after(rest_s, topics.SCHEDULER)
        await asyncio.sleep(rest_after(time.monotonic() - began))

    while True:
        await hub.poll([topics.SCHEDULER], once, SWEEP_S)
