"""The end of a leg: what the supervisor reported becomes the trial's next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from determined_registry.tables import legs, trials
from determined_searchers import ExitReason, TrialClosed, TrialExitedEarly
from determined_service.control import allocations as allocating
from determined_service.control import experiments as experimenting
from determined_service.control import lifecycle as states
from determined_service.control import log_actions, prefect_states
from determined_service.control.change import Change
from determined_service.control.exits import (
    ExitDecision,
    ExitFacts,
    ExitKind,
    Next,
    Outcome,
    decide_exit,
)
from determined_service.control.lifecycle import ALLOCATION, TRIAL, transition
from determined_service.errors import NotFound

# One statement locks in the order of the list after OF.
_LOCK = sa.text(
    """
    SELECT a.id, a.state, a.trial_id, a.experiment_id, a.run_id, a.agent_id, a.started_at,
           a.preempt_requested_at, a.preempt_acked_at, a.kill_requested_at,
           t.state AS trial_state, t.request_id, t.op_complete, t.closed, t.stop_requested,
           t.early_exit, t.restarts, e.state AS experiment_state,
           e.config -> 'searcher' AS searcher,
           coalesce((e.config ->> 'max_restarts')::int, 0) AS max_restarts
    FROM experiments e
    JOIN trials t ON t.experiment_id = e.id
    JOIN allocations a ON a.trial_id = t.id
    WHERE a.id = :id
    FOR NO KEY UPDATE OF e, t, a
    """
)

_LEG_ENDS = sa.text(
    """
    INSERT INTO legs (trial_id, run_id, allocation_id, state, reason, start_time, end_time)
    VALUES (:trial_id, :run_id, :id, :state, :reason, :started_at, now())
    ON CONFLICT (trial_id, run_id)
    DO UPDATE SET state = :state, reason = :reason, end_time = now()
    """
)


@dataclass(frozen=True, slots=True)
class Exit:
    """What is known of the end of a process."""

    kind: ExitKind
    exit_code: int | None = None
    exit_signal: int | None = None
    reason: str | None = None


async def end_leg(
    change: Change, allocation_id: str, exit: Exit, *, only_in: str | None = None
) -> None:
    """Ends the allocation and decides what its trial does next. A repeated report changes nothing.

    ``only_in``: nothing changes either when the allocation is not in this state (any more).
    Raises NotFound.
    """
    row = (await change.conn.execute(_LOCK, {"id": allocation_id})).first()
    if row is None:
        raise NotFound(f"allocation {allocation_id} does not exist")
    if row.state == states.TERMINATED or only_in not in (None, row.state):
        return
    decision = decide_exit(await _facts(change, row, exit))
    await transition(
        change,
        ALLOCATION,
        allocation_id,
        states.TERMINATED,
        reason=decision.reason,
        exit_code=exit.exit_code,
        exit_signal=exit.exit_signal,
        token=None,
    )
    await change.conn.execute(
        _LEG_ENDS,
        {
            "trial_id": row.trial_id,
            "run_id": row.run_id,
            "id": allocation_id,
            "state": decision.outcome,
            "reason": decision.reason,
            "started_at": row.started_at,
        },
    )
    change.notify("scheduler", f"trial:{row.trial_id}", f"experiment:{row.experiment_id}")
    if row.agent_id and exit.kind is ExitKind.INFRASTRUCTURE:
        # Perhaps it was not the agent that said so.
        change.notify(f"agent:{row.agent_id}")
    await _go_on(change, row, decision)
    await experimenting.finish_if_quiet(change, row.experiment_id, row.experiment_state)


async def _facts(change: Change, row: sa.Row[Any], exit: Exit) -> ExitFacts:
    lost = 0
    no_restart = None
    if exit.kind is ExitKind.INFRASTRUCTURE:
        lost = await _lost_in_a_row(change, row.trial_id)
    elif exit.exit_code or exit.exit_signal:
        no_restart = await log_actions.no_restart(change.conn, row.trial_id, row.run_id)
    return ExitFacts(
        exit_code=exit.exit_code,
        exit_signal=exit.exit_signal,
        kind=exit.kind,
        reason=exit.reason,
        preempt_requested=row.preempt_requested_at is not None,
        preempt_acked=row.preempt_acked_at is not None,
        kill_requested=row.kill_requested_at is not None,
        experiment_state=row.experiment_state,
        trial_state=row.trial_state,
        reports_form=allocating.is_reports_form(row.searcher),
        op_complete=row.op_complete,
        closed=row.closed,
        stop_requested=row.stop_requested,
        early_exit=row.early_exit,
        restarts=row.restarts,
        max_restarts=row.max_restarts,
        lost_in_a_row=lost,
        no_restart=no_restart,
    )


async def _lost_in_a_row(change: Change, trial_id: int) -> int:
    found = await change.conn.execute(
        sa.select(legs.c.state)
        .where(legs.c.trial_id == trial_id)
        .order_by(legs.c.run_id.desc())
        .limit(20)
    )
    count = 0
    for state in found.scalars():
        if state != Outcome.LOST:
            break
        count += 1
    return count


async def _go_on(change: Change, row: sa.Row[Any], decision: ExitDecision) -> None:
    if decision.counts:
        await change.conn.execute(
            sa.update(trials)
            .where(trials.c.id == row.trial_id)
            .values(restarts=trials.c.restarts + 1)
        )
    match decision.next:
        case Next.END:
            assert decision.trial_state is not None
            await end_trial(
                change,
                row.experiment_id,
                row.trial_id,
                row.request_id,
                decision.trial_state,
                decision.reason,
                decision.event,
            )
        case Next.REQUEUE if nowhere := await log_actions.no_agent_left(change.conn, row.trial_id):
            reason = f"{decision.reason}; {nowhere}"
            await end_trial(
                change,
                row.experiment_id,
                row.trial_id,
                row.request_id,
                states.ERROR,
                reason,
                ExitReason.ERRORED,
            )
        case Next.REQUEUE:
            await allocating.request(change, [row.trial_id])
            prefect_states.awaiting_slots(change, row.trial_id, decision.reason)
        case Next.WAIT if row.experiment_state == states.PAUSED:
            prefect_states.paused(change, row.trial_id, decision.reason)
        case Next.WAIT:
            prefect_states.paused(change, row.trial_id, "waits for the searcher's next operation")


async def end_trial(
    change: Change,
    experiment_id: int,
    trial_id: int,
    request_id: str,
    state: str,
    reason: str,
    event: ExitReason | None = None,
) -> None:
    """Ends the locked trial, which holds no slots, and tells the searcher."""
    await transition(change, TRIAL, trial_id, state, reason=reason)
    if event is not None:
        change.tell_search(experiment_id, TrialExitedEarly(request_id, event))
    change.tell_search(experiment_id, TrialClosed(request_id))
    change.notify(f"experiment:{experiment_id}")
    prefect_states.ended(change, prefect_states.trial_entity(trial_id), state, reason)
