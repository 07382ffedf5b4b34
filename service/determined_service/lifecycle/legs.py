"""A leg, from the start of its process to its end: the same for every kind of task."""

from __future__ import annotations

import sqlalchemy as sa

from determined.common.wire.legs import ExitKind
from determined_service.base import topics
from determined_service.lifecycle.exits import Exit
from determined_service.lifecycle.kinds.table import lock_leg, slot_kind
from determined_service.state import prefect_states, states
from determined_service.state.change import Change
from determined_service.state.states import ALLOCATION, require_move_made

# Both move the allocation and write the leg at once; the table of moves is asked for the states that each
# move may come from.
_BEGINS = sa.text(
    """
    WITH moved AS (
        UPDATE allocations a SET state = 'RUNNING', started_at = now(), pid = :pid
        FROM tasks k
        WHERE a.id = :id AND a.state = ANY(:sources) AND k.id = a.task_id
        RETURNING a.id, a.task_id, a.run_id, a.agent_id, a.started_at, a.trial_id, a.experiment_id,
                  k.kind
    ), written AS (
        INSERT INTO legs (task_id, run_id, allocation_id, state, start_time)
        SELECT task_id, run_id, id, 'RUNNING', started_at FROM moved
        ON CONFLICT DO NOTHING
    )
    SELECT * FROM moved
    """
)
_ENDS = sa.text(
    """
    WITH moved AS (
        UPDATE allocations
        SET state = 'TERMINATED', ended_at = now(), reason = :reason, exit_code = :exit_code,
            exit_signal = :exit_signal, token = NULL
        WHERE id = :id AND state = ANY(:sources)
        RETURNING id, task_id, run_id, reason, started_at, ended_at
    )
    INSERT INTO legs (task_id, run_id, allocation_id, state, reason, start_time, end_time)
    SELECT task_id, run_id, id, :outcome, reason, started_at, ended_at FROM moved
    ON CONFLICT (task_id, run_id)
    DO UPDATE SET state = excluded.state, reason = excluded.reason, end_time = excluded.end_time
    """
)


async def start_leg(change: Change, allocation_id: str, pid: int | None) -> None:
    """The process runs. Raises NotFound; Conflict when the allocation has ended meanwhile."""
    sources = ALLOCATION.sources(states.RUNNING)
    given = {"id": allocation_id, "sources": sources, "pid": pid}
    leg = (await change.conn.execute(_BEGINS, given)).first()
    if leg is None:
        await require_move_made(change, ALLOCATION, allocation_id, states.RUNNING)
        return
    kind = slot_kind(leg.kind)
    change.notify(topics.allocation(allocation_id))
    if kind.mirrored:
        prefect_states.running(change, leg.task_id, leg.run_id, leg.agent_id)
    await kind.started(change, leg)


async def end_leg(
    change: Change, allocation_id: str, exit: Exit, *, only_in: str | None = None
) -> None:
    """Ends the allocation; its kind of task decides what follows. A repeated report changes nothing.

    ``only_in``: nothing changes either when the allocation is not in this state (any more).
    Raises NotFound.
    """
    kind, leg = await lock_leg(change, allocation_id)
    if leg.state == states.TERMINATED or only_in not in (None, leg.state):
        return
    end = await kind.judge(change, leg, exit)
    await change.conn.execute(
        _ENDS,
        {
            "id": allocation_id,
            "sources": ALLOCATION.sources(states.TERMINATED),
            "reason": end.reason,
            "exit_code": exit.exit_code,
            "exit_signal": exit.exit_signal,
            "outcome": end.outcome,
        },
    )
    change.notify(topics.SCHEDULER, topics.allocation(allocation_id))
    if leg.agent_id and exit.kind is ExitKind.INFRASTRUCTURE:
        # Perhaps it was not the agent that said so.
        change.notify(topics.agent(leg.agent_id))
    await end.go_on(change)
