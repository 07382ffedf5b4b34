"""Answers operations from a trial's known results, when a continued experiment's search begins again."""

from __future__ import annotations

from typing import Any

import orjson
import sqlalchemy as sa

from determined_registry.database.tables import trials
from determined_searchers import ExitReason, TrialClosed, TrialCreated, ValidationCompleted
from determined_service.base import topics
from determined_service.lifecycle.trial_end import TrialIds, end_trial
from determined_service.search.operations import OperationBatch, TrialChange
from determined_service.state import states
from determined_service.state.change import Change

_REVIVE_TRIAL = sa.text(
    """
    UPDATE trials
    SET state = :state, reason = NULL, end_time = NULL, restarts = 0, early_exit = NULL,
        stop_requested = false, hparams = cast(:hparams AS jsonb), seed = :seed,
        op_length = :op_length, op_index = CASE WHEN :op_length IS NULL THEN 0 ELSE 1 END,
        op_complete = :op_complete, closed = :closed, progress = 0
    WHERE id = :id
    """.replace(":op_length IS", "cast(:op_length AS bigint) IS")
)


async def take_up(
    change: Change, experiment: sa.Row[Any], batch: OperationBatch, reports: bool
) -> tuple[set[str], list[sa.Row[Any]]]:
    """Trials of ``batch`` that are to be made and exist: their request ids, and those that want slots."""
    asked_for = dict(batch.created())
    if not asked_for:
        return set(), []
    found = await change.conn.execute(
        sa.select(trials)
        .where(
            trials.c.experiment_id == experiment.id,
            trials.c.known.is_not(None),
            trials.c.request_id.in_(list(asked_for)),
        )
        .order_by(trials.c.id)
        .with_for_update(key_share=True)
    )
    taken, wanting = set(), []
    for row in found:
        taken.add(row.request_id)
        if await _take_up_one(change, experiment, row, asked_for[row.request_id], reports):
            wanting.append(row)
    return taken, wanting


async def _take_up_one(
    change: Change, experiment: sa.Row[Any], row: sa.Row[Any], asked: TrialChange, reports: bool
) -> bool:
    assert asked.create is not None
    change.tell_search(experiment.id, TrialCreated(row.request_id))
    if reports and row.known["completed"]:
        change.tell_search(experiment.id, TrialClosed(row.request_id))
        return False
    length = asked.length
    if reports and length is None:
        length = experiment.searcher.get("max_time")
    answered = is_known(row, asked.length)
    await change.conn.execute(
        _REVIVE_TRIAL,
        {
            "id": row.id,
            "state": experiment.state,
            "hparams": orjson.dumps(asked.create.hparams).decode(),
            "seed": asked.create.seed,
            "op_length": length,
            "op_complete": length is None or answered,
            "closed": asked.close,
        },
    )
    change.notify(topics.trial(row.id))
    if await answer(change, experiment, row, asked.length, closed=asked.close):
        return False
    return reports or asked.length is not None


def is_known(row: sa.Row[Any], length: int | None) -> bool:
    """True if the trial reported its metric at ``length`` before its experiment was continued."""
    return length is not None and row.known is not None and str(length) in row.known["lengths"]


async def answer(
    change: Change, experiment: sa.Row[Any], row: sa.Row[Any], length: int | None, *, closed: bool
) -> bool:
    """Answer the operation of ``length`` for the (locked) trial from earlier reports.

    False: nothing is known, so the trial has to run.
    """
    if length is None or row.known is None:
        return False
    if is_known(row, length):
        metric = row.known["lengths"][str(length)]
        change.tell_search(experiment.id, ValidationCompleted(row.request_id, metric, length))
        if closed:
            await _end(change, experiment, row, "closed by the searcher", None)
        return True
    if row.known.get("exit"):
        reason = ExitReason(row.known["exit"])
        words = f"it had ended early before the experiment was continued ({reason})"
        await _end(change, experiment, row, words, reason)
        return True
    return False


async def _end(
    change: Change, experiment: sa.Row[Any], row: sa.Row[Any], reason: str, exit: ExitReason | None
) -> None:
    await end_trial(change, TrialIds.of(row), states.COMPLETED, reason, exit)
