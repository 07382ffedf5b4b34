"""The steps of a run, each done once: :func:`advance`.

Each step locks the run's row, looks whether it is still to be done, and does it and writes that it is done
in one transaction. So any number of processes may advance the same run, killed at any point: what is written
counts, and what is not was not done. The experiment of a step is made in the transaction that writes its
number; the decision is written, with the scores, before the step that acts on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.promotion import Comparison, ScoresError, decide, trial
from determined_registry import models as registry
from determined_registry.database.tables import (
    experiments,
    metrics,
    model_versions,
    retraining_runs,
    trials,
    users,
)
from determined_service.base.db import Database
from determined_service.base.errors import ApiError, Conflict
from determined_service.base.settings import Settings
from determined_service.lifecycle import models as modelling
from determined_service.recurring.best import best_checkpoint
from determined_service.recurring.events import LOOK
from determined_service.retraining import runs
from determined_service.retraining.plans import Plan
from determined_service.state import states
from determined_service.state.change import Change, changing
from determined_service.submission import submit
from determined_service.views.models import alias_version

EVALUATIONS = 3
"""How often a challenger is evaluated, while people move the alias meanwhile."""
DATA_VERSION_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run is. ``experiment_id``: the experiment whose end it waits for."""

    run_id: int
    state: str
    reason: str | None
    experiment_id: int | None = None


async def advance(db: Database, settings: Settings, run_id: int) -> Standing:
    """Takes every step that can be taken now, and says what the run waits for. May be repeated, also at once.

    Raises NotFound.
    """
    while True:
        async with changing(db) as change:
            run = await runs.lock_run(change.conn, run_id)
            experiment_id = _experiment_of(run)
        if run.state not in runs.OPEN:
            return Standing(run_id, run.state, run.reason)
        try:
            if run.state != runs.PROMOTING and experiment_id is None:
                await _submit(db, settings, run)
            elif not await _conclude(db, run):
                return Standing(run_id, run.state, run.reason, experiment_id)
        except ApiError as error:
            async with changing(db) as change:
                now = await runs.lock_run(change.conn, run_id)
                if now.state == run.state:
                    await runs.fail(change, now, error.message)


def _experiment_of(run: sa.Row[Any]) -> int | None:
    found: int | None = getattr(run, _COLUMN[run.state]) if run.state in _COLUMN else None
    return found


_COLUMN = {
    runs.CHECKING: "check_experiment",
    runs.TRAINING: "training_experiment",
    runs.EVALUATING: "evaluation_experiment",
}


async def _submit(db: Database, settings: Settings, run: sa.Row[Any]) -> None:
    """Submits the experiment of the run's step in its owner's name, unless another process has."""
    plan = Plan.model_validate(run.plan)
    async with changing(db) as change:
        await _require_owner(change.conn, run)
        champion = await alias_version(change.conn, run.model_id, plan.alias)
        held = await _checkpoint_of(change.conn, run.model_id, champion)
    config = _CONFIGURE[run.state](run, plan, held)
    submission = submit.Submission(config=orjson.dumps(config).decode())
    prepared = await submit.prepare(submission, settings)
    async with changing(db) as change:
        now = await runs.lock_run(change.conn, run.id)
        if now.state != run.state or _experiment_of(now) is not None:
            return
        planned = await submit.plan(change.conn, submission, prepared, settings, run.owner_id)
        planned = replace(planned, model_def_hash=run.model_def_hash)
        experiment_id = await submit.store(change, planned, submission, run.owner_id)
        values: dict[str, Any] = {_COLUMN[run.state]: experiment_id}
        if run.state == runs.EVALUATING:
            values |= {"champion_version": champion, "evaluations": now.evaluations + 1}
        await runs.update(change, run.id, **values)


async def _require_owner(conn: AsyncConnection, run: sa.Row[Any]) -> None:
    found = await conn.execute(
        sa.select(users.c.username, users.c.active).where(users.c.id == run.owner_id)
    )
    owner = found.one()
    if not owner.active:
        raise Conflict(
            f"user {owner.username}, in whose name this model is trained again, is deactivated: "
            "let another user create the retraining"
        )


async def _checkpoint_of(conn: AsyncConnection, model_id: int, version: int | None) -> UUID | None:
    found = await conn.execute(
        sa.select(model_versions.c.checkpoint_uuid).where(
            model_versions.c.model_id == model_id, model_versions.c.version == version
        )
    )
    uuid: UUID | None = found.scalar_one_or_none()
    return uuid


def _check_config(run: sa.Row[Any], plan: Plan, champion: UUID | None) -> dict[str, Any]:
    given: dict[str, Any] = {"data_files": plan.data_files}
    if plan.data_version is not None:
        given = {"data_version": plan.data_version}
    config: dict[str, Any] = orjson.loads(run.config)
    return trial.configuration(config, f"{run.model}: data of run {run.id}", given)


def _training_config(run: sa.Row[Any], plan: Plan, champion: UUID | None) -> dict[str, Any]:
    config = _with_data(run)
    if plan.warm_start and champion is not None:
        searcher = {
            key: value for key, value in config["searcher"].items() if key != "source_trial_id"
        }
        config["searcher"] = {**searcher, "source_checkpoint_uuid": str(champion)}
    return config


def _evaluation_config(run: sa.Row[Any], plan: Plan, champion: UUID | None) -> dict[str, Any]:
    rule = plan.read_rule()
    named = {"challenger": str(run.challenger)}
    if champion is not None:
        named["champion"] = str(champion)
    given = {
        "evaluate": plan.evaluate,
        "checkpoints": named,
        "rule": {
            "metric": rule.metric,
            "smaller_is_better": rule.smaller_is_better,
            "confidence": rule.confidence,
        },
        "seed": run.id,
    }
    return trial.configuration(_with_data(run), f"{run.model}: evaluation of run {run.id}", given)


def _with_data(run: sa.Row[Any]) -> dict[str, Any]:
    """The configuration, in which training and evaluation read which version of the data was checked."""
    config: dict[str, Any] = orjson.loads(run.config)
    if run.data_version is None:
        return config
    given = config.get("data")
    return {**config, "data": {**(given or {}), "version": run.data_version}}


_CONFIGURE: dict[str, Callable[[sa.Row[Any], Plan, UUID | None], dict[str, Any]]] = {
    runs.CHECKING: _check_config,
    runs.TRAINING: _training_config,
    runs.EVALUATING: _evaluation_config,
}


async def _conclude(db: Database, run: sa.Row[Any]) -> bool:
    """Takes what the step's experiment has found, and goes to the next step; False: it has not ended."""
    async with changing(db) as change:
        now = await runs.lock_run(change.conn, run.id)
        if now.state != run.state:
            return True
        if now.state == runs.PROMOTING:
            await _promote(change, now)
            return True
        experiment_id = _experiment_of(now)
        found = await change.conn.execute(
            sa.select(experiments.c.state, experiments.c.reason).where(
                experiments.c.id == experiment_id
            )
        )
        experiment = found.first()
        if experiment is not None and experiment.state not in states.TERMINAL:
            return False
        if experiment is None or experiment.state != states.COMPLETED:
            how = "was deleted" if experiment is None else f"ended {experiment.state}"
            why = f": {experiment.reason}" if experiment is not None and experiment.reason else ""
            raise Conflict(f"experiment {experiment_id} {how}{why}")
        await _CONCLUDE[now.state](change, now)
        return True


async def _checked(change: Change, run: sa.Row[Any]) -> None:
    reported = await _reported(change.conn, run.check_experiment)
    version = reported.get(trial.DATA_VERSION)
    if not isinstance(version, str) or not 0 < len(version) <= DATA_VERSION_CHARS:
        raise Conflict(f"experiment {run.check_experiment} has reported no version of the data")
    found = await change.conn.execute(
        sa.select(retraining_runs.c.id, retraining_runs.c.data_version)
        .where(
            retraining_runs.c.retraining_id == run.retraining_id,
            retraining_runs.c.id != run.id,
            retraining_runs.c.training_experiment.is_not(None),
            retraining_runs.c.state.in_((runs.PROMOTED, runs.KEPT, runs.WAITING, runs.REJECTED)),
        )
        .order_by(retraining_runs.c.id.desc())
        .limit(1)
    )
    last = found.first()
    if last is not None and last.data_version == version and not run.forced:
        reason = (
            f"the data has not changed since run {last.id} ({version[:100]}): nothing is trained; "
            "`det retrain run --force` trains anyway"
        )
        if run.cause == LOOK:
            await _tidy_looks(change, run)
        await runs.end(change, run.id, runs.SKIPPED, reason, data_version=version)
        return
    await runs.update(change, run.id, state=runs.TRAINING, data_version=version)


async def _tidy_looks(change: Change, run: sa.Row[Any]) -> None:
    """Of looks that found nothing the history keeps the last one, and the lists show no experiments."""
    await change.conn.execute(
        sa.delete(retraining_runs).where(
            retraining_runs.c.retraining_id == run.retraining_id,
            retraining_runs.c.cause == LOOK,
            retraining_runs.c.state == runs.SKIPPED,
        )
    )
    await change.conn.execute(
        sa.update(experiments).where(experiments.c.id == run.check_experiment).values(archived=True)
    )


async def _trained(change: Change, run: sa.Row[Any]) -> None:
    found = await change.conn.execute(
        sa.select(trials.c.id).where(trials.c.experiment_id == run.training_experiment)
    )
    best = await best_checkpoint(change.conn, list(found.scalars()))
    if best is None:
        raise Conflict(
            f"experiment {run.training_experiment} has no checkpoint with the searcher's metric: its code "
            "must save one at the step of a validation, and its checkpoint policy must keep it"
        )
    await runs.update(change, run.id, state=runs.EVALUATING, challenger=best)


async def _evaluated(change: Change, run: sa.Row[Any]) -> None:
    reported = await _reported(change.conn, run.evaluation_experiment)
    try:
        comparison = Comparison.read(reported.get(trial.COMPARISON))
    except ScoresError as error:
        raise Conflict(f"experiment {run.evaluation_experiment}: {error}") from None
    if comparison.had_champion != (run.champion_version is not None):
        raise Conflict(f"experiment {run.evaluation_experiment} compared with another champion")
    decision = decide(Plan.model_validate(run.plan).read_rule(), comparison)
    written = {**decision.to_json(), "scores": comparison.to_json()["metrics"]}
    await runs.update(
        change, run.id, state=runs.PROMOTING, decision=written, reason=decision.reason
    )


async def _promote(change: Change, run: sa.Row[Any]) -> None:
    """Registers the version with its scores, and moves the alias if that was decided, in one transaction."""
    plan = Plan.model_validate(run.plan)
    conn = change.conn
    # The model's row first, as whoever moves the alias locks it.
    await modelling.apply(conn, registry.find_model, run.model_id, lock=True)
    if await alias_version(conn, run.model_id, plan.alias) != run.champion_version:
        await _again(change, run)
        return
    made = await modelling.apply(
        conn,
        registry.register_version,
        run.model_id,
        run.challenger,
        run.owner_id,
        comment=f"retraining run {run.id}: {run.reason}"[:1_000],
        metadata={
            "retraining": {
                "run": run.id,
                "scores": run.decision["scores"],
                "promoted": run.decision["promote"],
                "champion": run.champion_version,
                "data_version": run.data_version,
            }
        },
    )
    if not run.decision["promote"]:
        await runs.end(change, run.id, runs.KEPT, run.reason, version=made.version)
    elif plan.approval:
        await runs.update(change, run.id, state=runs.WAITING, version=made.version)
    else:
        await modelling.apply(
            conn, registry.set_alias, run.model_id, plan.alias, made.version, run.owner_id
        )
        await runs.end(change, run.id, runs.PROMOTED, run.reason, version=made.version)


async def _again(change: Change, run: sa.Row[Any]) -> None:
    if run.evaluations >= EVALUATIONS:
        raise Conflict(
            f"somebody moved the alias during each of {run.evaluations} evaluations: nothing is changed"
        )
    await runs.update(
        change,
        run.id,
        state=runs.EVALUATING,
        evaluation_experiment=None,
        decision=None,
        reason="the alias was moved by somebody during the evaluation: evaluated again",
    )


async def _reported(conn: AsyncConnection, experiment_id: int | None) -> dict[str, Any]:
    """What the trial of an evaluation has reported last."""
    found = await conn.execute(
        sa.select(metrics.c.metrics)
        .join(trials, trials.c.id == metrics.c.trial_id)
        .where(
            trials.c.experiment_id == experiment_id,
            metrics.c.group_name == trial.GROUP,
            ~metrics.c.archived,
        )
        .order_by(metrics.c.id.desc())
        .limit(1)
    )
    return dict(found.scalar_one_or_none() or {})


_CONCLUDE: dict[str, Callable[[Change, sa.Row[Any]], Awaitable[None]]] = {
    runs.CHECKING: _checked,
    runs.TRAINING: _trained,
    runs.EVALUATING: _evaluated,
}
