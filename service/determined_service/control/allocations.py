"""Allocations, from the request for slots to the end of the process that held them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.tables import allocations
from determined_searchers.settings import Form, read_form
from determined_service.auth import ended
from determined_service.control import lifecycle as states
from determined_service.control import prefect_states
from determined_service.control.change import Change
from determined_service.control.lifecycle import ALLOCATION, transition
from determined_service.errors import NotFound
from determined_service.hub import CHANNEL

# The leg number grows in the same statement, so two requests can never share an id.
_REQUEST = sa.text(
    """
    WITH numbered AS (
        UPDATE trials SET run_count = run_count + 1
        WHERE id = ANY(:ids)
        RETURNING id, experiment_id, experiment_id || '.' || request_id AS task_id, run_count
    )
    INSERT INTO allocations
        (id, task_id, experiment_id, trial_id, run_id, state, resource_pool, slots, priority)
    SELECT n.task_id || '.' || n.run_count, n.task_id, n.experiment_id, n.id, n.run_count,
           :state, e.resource_pool,
           coalesce((e.config #>> '{resources,slots_per_trial}')::int, 1),
           coalesce((e.config #>> '{resources,priority}')::int, 42)
    FROM numbered n JOIN experiments e ON e.id = n.experiment_id
    ORDER BY n.id
    """
)

_LEG_BEGINS = sa.text(
    """
    WITH allocation AS (
        SELECT trial_id, run_id, id, started_at, agent_id, experiment_id FROM allocations
        WHERE id = :id AND trial_id IS NOT NULL
    ), written AS (
        INSERT INTO legs (trial_id, run_id, allocation_id, state, start_time)
        SELECT trial_id, run_id, id, 'RUNNING', started_at FROM allocation
        ON CONFLICT DO NOTHING
    )
    SELECT trial_id, run_id, agent_id, experiment_id FROM allocation
    """
)


def is_reports_form(searcher: Mapping[str, Any]) -> bool:
    """Whether trials under this ``searcher`` section decide themselves how long they train."""
    return read_form(searcher) is Form.REPORTS


def wants_slots(reports: bool, op_complete: bool, closed: bool) -> bool:
    """Whether a trial that has not ended and holds no slots should queue for some.

    One that has done all it ever will (``closed``) does so only if its last process did not exit
    cleanly: it gets another chance to.
    """
    return reports or not op_complete or closed


async def request(change: Change, trial_ids: Sequence[int]) -> None:
    """Puts the (locked) trials into the queue for slots, as their next leg."""
    if trial_ids:
        await change.conn.execute(_REQUEST, {"ids": list(trial_ids), "state": states.REQUESTED})
        change.notify("scheduler")


async def live_of_experiment(change: Change, experiment_id: int) -> list[sa.Row[Any]]:
    """The experiment's allocations that have not ended, locked."""
    return await _live(change, allocations.c.experiment_id == experiment_id)


async def live_of_trial(change: Change, trial_id: int) -> sa.Row[Any] | None:
    """The trial's allocation that has not ended, locked; None: it has none."""
    rows = await _live(change, allocations.c.trial_id == trial_id)
    return rows[0] if rows else None


async def _live(change: Change, condition: sa.ColumnElement[bool]) -> list[sa.Row[Any]]:
    found = await change.conn.execute(
        sa.select(
            allocations.c.id, allocations.c.trial_id, allocations.c.state, allocations.c.agent_id
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
    change.notify("scheduler")


async def preempt(change: Change, allocation_id: str) -> None:
    """The process is to save a checkpoint and exit; asking again changes nothing."""
    await _mark(change, allocation_id, allocations.c.preempt_requested_at)


async def kill(change: Change, allocation_id: str) -> None:
    """The agent is to kill the process; it is told again until the process is gone."""
    await _mark(change, allocation_id, allocations.c.kill_requested_at)


_ACKNOWLEDGE = sa.text(
    """
    WITH marked AS (
        UPDATE allocations SET preempt_acked_at = coalesce(preempt_acked_at, now())
        WHERE id = :id AND state <> 'TERMINATED' RETURNING id
    )
    SELECT pg_notify(:channel, 'allocation:' || id) FROM marked
    """
)


async def acknowledge_preemption(conn: AsyncConnection, allocation_id: str) -> None:
    """The process says that its exit will not be final; one statement, so ``conn`` needs no
    transaction. Raises NotFound, Conflict when it has ended."""
    found = await conn.execute(_ACKNOWLEDGE, {"id": allocation_id, "channel": CHANNEL})
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
        .returning(allocations.c.agent_id)
    )
    row = found.first()
    if row is None:
        raise NotFound(f"allocation {allocation_id} does not exist")
    change.notify(f"allocation:{allocation_id}")
    if row.agent_id and column is allocations.c.kill_requested_at:
        change.notify(f"agent:{row.agent_id}")


async def start(change: Change, allocation_id: str, pid: int | None) -> None:
    """The process runs. Raises NotFound; Conflict when the allocation has ended meanwhile."""
    if not await transition(change, ALLOCATION, allocation_id, states.RUNNING, pid=pid):
        return
    leg = (await change.conn.execute(_LEG_BEGINS, {"id": allocation_id})).first()
    if leg is not None:
        change.notify(f"trial:{leg.trial_id}", f"experiment:{leg.experiment_id}")
        prefect_states.running(change, leg.trial_id, leg.run_id, leg.agent_id)
