"""The pipeline of a retraining's run: its plan, and what its steps make of the run's row.

A run is a pipeline of the steps check, train, evaluate and promote, which no user sees as a pipeline.
:func:`follow` writes the run's row in each transaction that changes the pipeline, so the two never differ.
"""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import experiments, pipelines, retraining_runs
from determined_service.base import topics
from determined_service.pipelines import machine, rows
from determined_service.pipelines.in_trials import CHANGED, DATA_VERSION
from determined_service.pipelines.machine import Try
from determined_service.pipelines.rows import StoredPipeline
from determined_service.recurring.events import LOOK
from determined_service.state.change import Change

# A run is in one of these steps …
CHECKING, TRAINING, EVALUATING, PROMOTING = "CHECKING", "TRAINING", "EVALUATING", "PROMOTING"
OPEN = (CHECKING, TRAINING, EVALUATING, PROMOTING)
# … or waits for a person …
WAITING = "WAITING_FOR_APPROVAL"
# … or has ended.
PROMOTED, KEPT, SKIPPED, REJECTED = "PROMOTED", "KEPT", "SKIPPED", "REJECTED"
FAILED, CANCELED, ROLLED_BACK = "FAILED", "CANCELED", "ROLLED_BACK"

CHECK_STEP, TRAIN_STEP, EVALUATE_STEP, PROMOTE_STEP = "check", "train", "evaluate", "promote"
_IN_STEP = {
    CHECK_STEP: CHECKING,
    TRAIN_STEP: TRAINING,
    EVALUATE_STEP: EVALUATING,
    PROMOTE_STEP: PROMOTING,
}
KNOWN_RUN = "known_run"
"""In the step of the check: the run that has seen the version ``known``."""

r = retraining_runs.c


async def follow(change: Change, pipeline_id: int, run_id: int) -> None:
    """Writes what has become of the run, unless it has ended."""
    now = await rows.load(change.conn, await rows.find(change.conn, pipeline_id))
    values = facts(now)
    state, reason = values["state"], values["reason"]
    if state not in (*OPEN, WAITING):
        values["ended_at"] = sa.func.clock_timestamp()
    if now.row.state in machine.ENDED:
        told = sa.update(pipelines).where(pipelines.c.id == pipeline_id)
        words = f"retraining run {run_id} {state}: {reason}"
        await change.conn.execute(told.values(reason=words))
    written = await change.conn.execute(
        sa.update(retraining_runs)
        .where(r.id == run_id, r.ended_at.is_(None))
        .values(values)
        .returning(r.retraining_id, r.cause)
    )
    run = written.first()
    if run is not None and (state, run.cause) == (SKIPPED, LOOK):
        await _tidy_looks(change, run.retraining_id, run_id, values["check_experiment"])
    change.notify(topics.RETRAININGS)


async def note_champion(change: Change, run_id: int, version: int | None) -> None:
    """The evaluation that begins compares with this version; None: there is no champion."""
    run = sa.update(retraining_runs).where(r.id == run_id)
    await change.conn.execute(run.values(champion_version=version))


async def _tidy_looks(
    change: Change, retraining_id: int, run_id: int, experiment_id: int | None
) -> None:
    """Of looks that found nothing the history keeps the last one, and the lists show no experiments."""
    await change.conn.execute(
        sa.delete(retraining_runs).where(
            r.retraining_id == retraining_id, r.cause == LOOK, r.state == SKIPPED, r.id != run_id
        )
    )
    await change.conn.execute(
        sa.update(experiments).where(experiments.c.id == experiment_id).values(archived=True)
    )


def facts(now: StoredPipeline) -> dict[str, Any]:
    """The columns of the run, as its pipeline stands. Pure."""
    tries: dict[str, Try | None] = {
        step.name: standing.tries[-1] if standing.tries else None
        for step, standing in zip(now.plan.steps, now.standings, strict=True)
    }
    found: dict[str, Any] = {
        column: None if one is None else one.experiment_id
        for column, one in (
            ("check_experiment", tries.get(CHECK_STEP)),
            ("training_experiment", tries[TRAIN_STEP]),
            ("evaluation_experiment", tries[EVALUATE_STEP]),
        )
    }
    evaluation = tries[EVALUATE_STEP]
    if evaluation is not None:
        has_begun = evaluation.experiment_id is not None
        found["evaluations"] = evaluation.attempt - (0 if has_begun else 1)
    if checked := now.results.get(CHECK_STEP):
        found["data_version"] = checked[0].metrics[DATA_VERSION]
    if trained := now.results.get(TRAIN_STEP):
        challenger = trained[0].checkpoint
        found["challenger"] = None if challenger is None else uuid.UUID(challenger)
    compared = now.results.get(EVALUATE_STEP)
    decision = compared[0].decision if compared else None
    found["decision"] = decision and {key: decision[key] for key in ("promote", "reason", "scores")}
    if decision is not None:
        found["champion_version"] = decision["champion"]
    promotion = tries[PROMOTE_STEP]
    if promotion is not None and promotion.result is not None:
        found["version"] = promotion.result.metrics["version"]
    return found | _state(now, promotion)


def _state(now: StoredPipeline, promotion: Try | None) -> dict[str, Any]:
    if promotion is not None and promotion.result is not None:
        return _decided(promotion)
    if (checked := now.results.get(CHECK_STEP)) and not checked[0].metrics[CHANGED]:
        version = checked[0].metrics[DATA_VERSION]
        known_run = now.plan.step(CHECK_STEP).config[KNOWN_RUN]
        return {
            "state": SKIPPED,
            "reason": f"the data has not changed since run {known_run} ({version[:100]}): nothing is "
            "trained; `det retrain run --force` trains anyway",
        }
    place = next(at for at, one in enumerate(now.standings) if one.state != machine.COMPLETED)
    step, reason = _IN_STEP[now.plan.steps[place].name], now.steps[place].reason
    failure = _failure(now, place)
    if failure is not None or now.row.state in (machine.FAILED, machine.CANCELED):
        is_canceled = failure is None and now.row.state == machine.CANCELED
        state = CANCELED if is_canceled else FAILED
        return {"state": state, "failed_step": step, "reason": failure or reason}
    if step == PROMOTING and (compared := now.results.get(EVALUATE_STEP)):
        assert compared[0].decision is not None
        reason = compared[0].decision["reason"]
    return {"state": step, "reason": reason}


def _failure(now: StoredPipeline, place: int) -> str | None:
    """Why the step has failed; None: it has not."""
    standing = now.standings[place]
    if standing.state == machine.FAILED:
        return now.steps[place].reason or "no reason is known"
    failed = [one.reason for one in standing.tries if one.state == machine.FAILED]
    return failed[-1] if failed else None


def _decided(promotion: Try) -> dict[str, Any]:
    """Of a run whose version is registered."""
    assert promotion.result is not None and promotion.result.decision is not None
    found, reason = promotion.result.metrics, promotion.reason
    if found["promoted"]:
        return {"state": PROMOTED, "reason": reason}
    if promotion.state == machine.RUNNING:
        return {"state": WAITING, "reason": reason}
    if promotion.state == machine.CANCELED:
        return {"state": KEPT, "reason": f"{promotion.result.decision['reason']}; {reason}"}
    return {"state": REJECTED if found.get("rejected") else KEPT, "reason": reason}
