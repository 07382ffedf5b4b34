"""Changes of one trial by its training process and by users: operations, progress, early exit, kill.

``sender`` is the allocation whose process reports (None: a user or an agent does). Its end takes the
trial's lock, so what is written under that lock, after a look at the allocation, was sent by a leg
that still counts. A leg that was given up gets Conflict, however late its request comes.
"""

from __future__ import annotations

import math
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.search import NoOperation
from determined_registry.database.tables import search_events, trials
from determined_searchers import (
    ExitReason,
    TrialProgress,
    ValidationCompleted,
)
from determined_searchers.metrics import decode_metric
from determined_searchers.settings import is_custom
from determined_service.access.principal import ended
from determined_service.base import topics
from determined_service.base.errors import BadRequest, NotFound
from determined_service.base.hub import CHANNEL
from determined_service.lifecycle import allocations as allocating
from determined_service.lifecycle import trial_queue, unmanaged
from determined_service.lifecycle.experiments import lock_experiment
from determined_service.lifecycle.trial_end import TrialIds, end_trial
from determined_service.state import states
from determined_service.state.change import Change
from determined_service.state.states import TRIAL, transition

# A trial may call its hyperparameters invalid, or ask to stop; other reasons are the platform's.
REPORTABLE = (
    ExitReason.INVALID_HP,
    ExitReason.INIT_INVALID_HP,
    ExitReason.USER_REQUESTED_STOP,
)


_LOCK = sa.text(
    """
    SELECT t.id, t.experiment_id, t.request_id, t.task_id, t.state, t.op_length, t.op_complete,
           e.config -> 'searcher' AS searcher, e.unmanaged
    FROM trials t JOIN experiments e ON e.id = t.experiment_id
    WHERE t.id = :id
    FOR NO KEY UPDATE OF t
    """
)
_ALIVE = "NOT EXISTS (SELECT FROM allocations a WHERE a.id = :sender AND a.state = 'TERMINATED')"
_COMPLETE = sa.text(
    f"UPDATE trials SET op_complete = true, progress = 1.0 WHERE id = :id AND {_ALIVE} RETURNING id"
)
_SET_PROGRESS = sa.text(
    f"UPDATE trials SET progress = :progress WHERE id = :id AND {_ALIVE} RETURNING id"
)
_SET_EARLY_EXIT = sa.text(
    f"UPDATE trials SET early_exit = :reason WHERE id = :id AND {_ALIVE} RETURNING id"
)
_SET_RUNNER_STATE = sa.text(
    f"UPDATE trials SET runner_state = :state WHERE id = :id AND {_ALIVE} RETURNING id"
)


async def _write(
    change: Change, statement: sa.TextClause, sender: str | None, **values: Any
) -> None:
    """Runs an update of the locked trial. Raises Conflict when the sender's allocation has ended."""
    found = await change.conn.execute(statement, {"sender": sender, **values})
    if found.first() is None:
        assert sender is not None
        raise ended(sender)


async def _lock_trial(change: Change, trial_id: int) -> sa.Row[Any]:
    row = (await change.conn.execute(_LOCK, {"id": trial_id})).first()
    if row is None:
        raise NotFound(f"trial {trial_id} does not exist")
    return row


async def complete_operation(
    change: Change, trial_id: int, length: int, metric: Any, *, sender: str | None = None
) -> None:
    """The trial has trained to ``length`` and reports the searcher's metric.

    Raises NotFound; BadRequest when the operation is another one, or the metric is not a number; Conflict
    when the sender has ended. The same report sent again changes nothing.
    """
    row = await _lock_trial(change, trial_id)
    custom = is_custom(row.searcher)
    number = decode_metric(metric)
    if not custom and (isinstance(number, bool) or not isinstance(number, (int, float))):
        raise BadRequest(
            f"the searcher metric {row.searcher.get('metric')!r} must be a number, but trial "
            f"{trial_id} reported {metric!r}"
        )
    event = ValidationCompleted(row.request_id, number, length)
    problem = None
    if row.op_length is None:
        problem = f"trial {trial_id} has no searcher operation to complete"
    elif length != row.op_length:
        problem = f"expected the operation of length {row.op_length}, but received length {length}"
    elif row.op_complete:
        problem = f"the operation of length {length} of trial {trial_id} was already completed"
    if problem is not None:
        if await _last_report(change, row) == event.to_json():
            return
        raise BadRequest(problem)
    await _write(change, _COMPLETE, sender, id=trial_id)
    change.notify(topics.trial(trial_id))
    if not trial_queue.is_reports_form(row.searcher):
        change.tell_search(row.experiment_id, event)


async def _last_report(change: Change, row: sa.Row[Any]) -> Any:
    event = search_events.c.event
    found = await change.conn.execute(
        sa.select(event)
        .where(
            search_events.c.experiment_id == row.experiment_id,
            event["request_id"].astext == row.request_id,
            event["type"].astext == ValidationCompleted.type,
        )
        .order_by(search_events.c.id.desc())
        .limit(1)
    )
    return found.scalar_one_or_none()


async def report_progress(
    change: Change,
    trial_id: int,
    value: float,
    *,
    fraction: bool,
    tell_search: bool,
    sender: str | None = None,
) -> None:
    """Store the trial's progress: units of its operation's length, or with ``fraction`` 0..1.

    ``tell_search``: also make an event of it (the caller throttles).
    """
    if not math.isfinite(value) or value < 0:
        raise BadRequest(f"progress must be a number of at least 0, not {value!r}")
    row = await _lock_trial(change, trial_id)
    reports = trial_queue.is_reports_form(row.searcher)
    length = row.op_length
    if fraction or not length:
        done, units = value, value * (length or 1)
    else:
        done, units = value / length, value
    await _write(change, _SET_PROGRESS, sender, id=trial_id, progress=min(done, 1.0))
    change.notify(topics.trial(trial_id))
    if tell_search and row.state not in states.TERMINAL and not row.unmanaged:
        event = TrialProgress(row.request_id, min(done, 1.0) if reports else units)
        change.tell_search(row.experiment_id, event)


async def report_early_exit(
    change: Change, trial_id: int, reason: str, *, sender: str | None = None
) -> None:
    """The process says why it is about to exit; the searcher hears of it when it has.

    Raises NotFound, BadRequest for a reason that is not the trial's to give.
    """
    name = reason.removeprefix("EXITED_REASON_")
    if name not in REPORTABLE:
        raise BadRequest(
            f"a trial cannot report the early exit {reason!r}; allowed are {', '.join(REPORTABLE)}"
        )
    row = await _lock_trial(change, trial_id)
    if row.state in states.TERMINAL:
        return
    await _write(change, _SET_EARLY_EXIT, sender, id=trial_id, reason=name)
    change.notify(topics.trial(trial_id))


async def set_runner_state(
    change: Change, trial_id: int, state: str, *, sender: str | None = None
) -> None:
    """The status that the training code shows. Raises NotFound."""
    await _lock_trial(change, trial_id)
    await _write(change, _SET_RUNNER_STATE, sender, id=trial_id, state=state)
    change.notify(topics.trial(trial_id))


async def kill(change: Change, trial_id: int) -> None:
    """Kills the trial; the search goes on without it. Raises NotFound."""
    conn = change.conn
    experiment_id = (
        await conn.execute(sa.select(trials.c.experiment_id).where(trials.c.id == trial_id))
    ).scalar_one_or_none()
    if experiment_id is None:
        raise NotFound(f"trial {trial_id} does not exist")
    await lock_experiment(change, experiment_id)
    row = await _lock_trial(change, trial_id)
    if row.state in states.TERMINAL:
        return
    if row.unmanaged:
        await unmanaged.end(change, experiment_id, [trial_id], "killed by the user")
        return
    live = await allocating.live_of_task(change, row.task_id)
    if live is not None and live.state != states.REQUESTED:
        await transition(
            change, TRIAL, trial_id, states.STOPPING_KILLED, reason="killed by the user"
        )
        await allocating.kill(change, live.id)
        change.notify(topics.experiment(experiment_id))
        return
    if live is not None:
        await allocating.withdraw(change, live.id, "killed by the user")
    await end_trial(
        change,
        TrialIds.of(row),
        states.CANCELED,
        "killed by the user",
        ExitReason.USER_CANCELED,
    )


_SET_RUN = sa.text(
    """
    WITH known AS (
        UPDATE tasks k SET flow_run_id = :run
        FROM trials t
        WHERE t.id = :id AND k.id = t.task_id
          AND t.experiment_id = coalesce(cast(:of AS integer), t.experiment_id)
        RETURNING k.id
    )
    SELECT pg_notify(:channel, :topic) FROM known
    """
)


async def set_flow_run(
    conn: AsyncConnection, trial_id: int, flow_run_id: UUID, of: int | None = None
) -> None:
    """The trial's Prefect run exists: its states, kept until now, may be delivered.

    One statement, so ``conn`` needs no transaction. Raises NotFound; also for a trial of another experiment
    than ``of``, if that is given.
    """
    given = {"id": trial_id, "run": flow_run_id, "of": of}
    given |= {"channel": CHANNEL, "topic": topics.OUTBOX}
    if (await conn.execute(_SET_RUN, given)).first() is None:
        whose = "" if of is None else f", or is not one of experiment {of}"
        raise NotFound(f"trial {trial_id} does not exist{whose}")


_OPERATION = sa.text(
    """
    SELECT t.request_id, t.experiment_id, t.op_length, t.op_complete, t.closed, t.state,
           e.state AS experiment_state, s.committed_event_id,
           CASE WHEN e.submitted_by IS NULL THEN NULL
                WHEN e.config #>> '{searcher,name}' = 'custom' THEN e.submitted_by END AS runner,
           EXISTS (
               SELECT FROM allocations a
               WHERE a.task_id = e.submitted_by AND a.state = 'REQUESTED' AND a.slots > 0
                 AND a.resource_pool = e.resource_pool
           ) AS runner_waits,
           EXISTS (
               SELECT FROM search_events v
               WHERE v.experiment_id = t.experiment_id AND v.id > s.committed_event_id
                 AND v.event ->> 'request_id' = t.request_id
                 AND v.event ->> 'type' = 'validation_completed'
           ) AS unanswered
    FROM trials t
    JOIN experiments e ON e.id = t.experiment_id
    JOIN searches s ON s.experiment_id = t.experiment_id
    WHERE t.id = :id
    """
)


class OperationWatch:
    """Finds a trial's next operation, waiting while the searcher has not decided.

    A completed operation is an event in the searcher's inbox; until its answer is committed nobody
    knows whether there is a next one. Other trials' events are not waited for. Nor does a trial of a
    custom search wait while the search's runner (the task that submitted the experiment) waits for slots
    itself: the trial may hold the very slot that the runner needs.

    ``topics`` (after the first check) announce what may change the answer.
    """

    def __init__(self, trial_id: int) -> None:
        self._trial_id = trial_id
        self.topics: list[str] = []
        self.last: dict[str, Any] | None = None

    async def check(self, conn: AsyncConnection) -> dict[str, Any] | None:
        """The answer, or None: not known yet. Raises NotFound, BadRequest."""
        found = await conn.execute(_OPERATION, {"id": self._trial_id})
        row = found.first()
        if row is None:
            raise NotFound(f"trial {self._trial_id} does not exist")
        if row.op_length is None and row.committed_event_id >= 0:
            raise BadRequest(
                f"the searcher of experiment {row.experiment_id} gives its trials no lengths: set "
                f"searcher.max_length, or let the training code decide how long it trains"
            )
        self.topics = [topics.trial(self._trial_id), topics.committed(row.experiment_id)]
        if row.runner is not None:
            self.topics.append(topics.task(row.runner))
        reason = _why_none(row)
        self.last = _operation_json(row, reason)
        return None if reason is NoOperation.UNDECIDED else self.last


def _why_none(row: sa.Row[Any]) -> NoOperation | None:
    """The reason why there is no operation to do; None: there is one."""
    if not row.op_complete:
        return None
    if row.closed or row.state != states.ACTIVE or row.experiment_state not in states.RUNNABLE:
        return NoOperation.OVER
    if not row.unanswered:
        return NoOperation.DECIDED
    if row.runner is not None and row.runner_waits:
        return NoOperation.RUNNER_WAITS
    return NoOperation.UNDECIDED


def _operation_json(row: sa.Row[Any], reason: NoOperation | None) -> dict[str, Any]:
    # A 64-bit length is a string in Determined's JSON; ``reason`` is ours.
    length = {"requestId": row.request_id, "length": str(row.op_length)}
    found = {"op": {"validateAfter": length}, "completed": row.op_complete}
    return found if reason is None else found | {"reason": reason.value}


async def replace_metadata(change: Change, trial_id: int, metadata: dict[str, Any]) -> None:
    """Replace the metadata that the training code (or a user) stored before. Raises NotFound."""
    found = await change.conn.execute(
        sa.update(trials)
        .where(trials.c.id == trial_id)
        .values(run_metadata=metadata)
        .returning(trials.c.id)
    )
    if found.first() is None:
        raise NotFound(f"trial {trial_id} does not exist")
