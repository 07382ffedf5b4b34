"""Allocations, from the request for slots to the end of the process that held them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import allocations
from determined_service.access.principal import ended
from determined_service.base import topics
from determined_service.base.errors import NotFound
from determined_service.base.hub import CHANNEL
from determined_service.state import nodes, states
from determined_service.state.change import Change
from determined_service.state.states import ALLOCATION, transition

# Its task is locked, so two requests can never share a number.
_REQUEST = sa.text(
    """
    INSERT INTO allocations
        (id, task_id, run_id, state, resource_pool, slots, priority, preemptible)
    SELECT k.id || '.' || run_id, k.id, run_id, :state, :pool, :slots, cast(:priority AS int),
           :preemptible
    FROM tasks k, LATERAL (
        SELECT coalesce(max(a.run_id), 0) + 1 AS run_id FROM allocations a WHERE a.task_id = k.id
    ) AS next
    WHERE k.id = :task_id
    RETURNING id
    """
)


async def request(
    change: Change,
    task_id: str,
    *,
    pool: str,
    slots: int,
    priority: int | None = None,
    preemptible: bool = False,
) -> str:
    """Puts the (locked) task into the queue for slots, as its next leg; the allocation's id.

    ``priority`` None: the default of the pool. Trials do so by
    :mod:`~determined_service.lifecycle.trial_queue`, many at once.
    """
    given = {
        "task_id": task_id,
        "state": states.REQUESTED,
        "pool": pool,
        "slots": slots,
        "priority": priority,
        "preemptible": preemptible,
    }
    allocation_id: str = (await change.conn.execute(_REQUEST, given)).scalar_one()
    change.notify(topics.SCHEDULER, topics.task(task_id))
    return allocation_id


async def request_again(change: Change, allocation_id: str) -> None:
    """Puts the (locked) task of an allocation that has ended into the queue again, for the same slots."""
    row = (
        await change.conn.execute(sa.select(allocations).where(allocations.c.id == allocation_id))
    ).one()
    await request(
        change,
        row.task_id,
        pool=row.resource_pool,
        slots=row.slots,
        priority=row.priority,
        preemptible=row.preemptible,
    )


async def live_of_task(change: Change, task_id: str) -> sa.Row[Any] | None:
    """The task's allocation that has not ended, locked; None: it has none."""
    rows = await lock_live(change, allocations.c.task_id == task_id)
    return rows[0] if rows else None


async def lock_live(change: Change, condition: sa.ColumnElement[bool]) -> list[sa.Row[Any]]:
    """The allocations that have not ended and for which ``condition`` holds, locked."""
    found = await change.conn.execute(
        sa.select(
            allocations.c.id, allocations.c.task_id, allocations.c.state, allocations.c.agent_id
        )
        .where(condition, allocations.c.state != states.TERMINATED)
        .order_by(allocations.c.id)
        .with_for_update(key_share=True)
    )
    return list(found)


async def withdraw(change: Change, allocation_id: str, reason: str) -> None:
    """Ends an allocation that no agent has heard of."""
    await transition(
        change, ALLOCATION, allocation_id, states.TERMINATED, reason=reason, token=None
    )
    change.notify(topics.SCHEDULER)


async def preempt(change: Change, allocation_id: str) -> None:
    """The process is to save a checkpoint and exit; asking again changes nothing."""
    await _mark(change, allocation_id, allocations.c.preempt_requested_at)


_STOP_FOR = sa.text(
    """
    UPDATE allocations SET preempt_requested_at = now(), stopping_for = :request_id
    WHERE id = :id AND state IN ('ASSIGNED', 'RUNNING')
      AND preempt_requested_at IS NULL AND kill_requested_at IS NULL
    RETURNING id
    """
)


async def stop_for(change: Change, allocation_id: str, request_id: str) -> bool:
    """As :func:`preempt`, for the waiting allocation ``request_id`` (or itself: see the column). The trial
    waits again in its old place. False: it has ended, or somebody stops it already."""
    given = {"id": allocation_id, "request_id": request_id}
    if (await change.conn.execute(_STOP_FOR, given)).first() is None:
        return False
    change.notify(topics.allocation(allocation_id))
    return True


async def kill(change: Change, allocation_id: str) -> None:
    """The agent is to kill the process; it is told again until the process is gone."""
    await _mark(change, allocation_id, allocations.c.kill_requested_at)


_ACKNOWLEDGE = sa.text(
    """
    WITH marked AS (
        UPDATE allocations SET preempt_acked_at = coalesce(preempt_acked_at, now())
        WHERE id = :id AND state <> 'TERMINATED' RETURNING id
    )
    SELECT pg_notify(:channel, :topic) FROM marked
    """
)


async def acknowledge_preemption(conn: AsyncConnection, allocation_id: str) -> None:
    """The process says that its exit will not be final; one statement, so ``conn`` needs no
    transaction. Raises NotFound, Conflict when it has ended."""
    given = {"id": allocation_id, "channel": CHANNEL, "topic": topics.allocation(allocation_id)}
    found = await conn.execute(_ACKNOWLEDGE, given)
    if found.first() is None:
        known = sa.select(allocations.c.id).where(allocations.c.id == allocation_id)
        if (await conn.execute(known)).first() is not None:
            raise ended(allocation_id)
        raise NotFound(f"allocation {allocation_id} does not exist")


async def _mark(change: Change, allocation_id: str, column: sa.Column[Any]) -> None:
    found = await change.conn.execute(
        sa.update(allocations)
        .where(allocations.c.id == allocation_id)
        .values({column.name: sa.func.coalesce(column, sa.func.now())})
        .returning(allocations.c.agent_id, allocations.c.nodes)
    )
    row = found.first()
    if row is None:
        raise NotFound(f"allocation {allocation_id} does not exist")
    change.notify(topics.allocation(allocation_id))
    if row.agent_id and column is allocations.c.kill_requested_at:
        gang = row.nodes > 1 and (await nodes.of_allocations(change.conn, [allocation_id]))
        holders = gang[allocation_id] if gang else [row]
        change.notify(*(topics.agent(one.agent_id) for one in holders))
