"""Steps that call a function of the user's in an experiment of one trial: evaluations, checks of the data."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.pipeline import PlannedStep, Result, configuration
from determined.common.pipeline.in_trials import trial_configuration
from determined.common.pipeline.kinds import CHECK
from determined.common.promotion import PromotionRule, ScoreComparison, ScoresError, decide, trial
from determined.common.wire import limits
from determined_registry import models as registry
from determined_registry.database.tables import metrics, model_versions, trials
from determined_service.base.errors import BadRequest, Conflict, NotFound
from determined_service.lifecycle import models as modelling
from determined_service.pipelines.machine import Try
from determined_service.pipelines.rows import StoredPipeline
from determined_service.views.models import alias_version

DATA_VERSION_CHARS = 1_000
DATA_VERSION, CHANGED = "data_version", "changed"
"""What a check finds. Unless it is CHANGED, the data is that of the version ``known``."""
COMPARED_WITH = "compared_with"
"""The hyperparameter with the champion's version."""


async def configure(
    conn: AsyncConnection, now: StoredPipeline, step: PlannedStep
) -> dict[str, Any]:
    """The configuration of the step's experiment. Raises ReferenceError_, NotFound."""
    todo = configuration(step, now.results)
    name = todo.get("name") or f"{now.row.name}: {step.name}"
    if step.kind == CHECK:
        given = {key: todo[key] for key in (DATA_VERSION, "data_files") if key in todo}
    else:
        given = await _evaluation(conn, todo, todo.get("seed", now.row.id))
    return trial_configuration(now.plan, step, now.results, name, given)


async def _evaluation(conn: AsyncConnection, todo: dict[str, Any], seed: int) -> dict[str, Any]:
    checkpoint = todo["checkpoint"]
    if isinstance(checkpoint, dict):
        checkpoint = await checkpoint_of(conn, checkpoint["model"], checkpoint["version"])
    try:
        checkpoints = {"challenger": str(uuid.UUID(str(checkpoint)))}
    except ValueError:
        raise BadRequest(f"evaluate: checkpoint {checkpoint!r} is not a UUID") from None
    given = {"evaluate": todo["function"], "checkpoints": checkpoints, "seed": seed}
    against = todo.get("against")
    if against is None:
        return given
    rule = PromotionRule.read(todo["rule"])
    given["rule"] = {
        "metric": rule.metric,
        "smaller_is_better": rule.smaller_is_better,
        "confidence": rule.confidence,
    }
    version = await champion(conn, against["model"], against["alias"])
    if version is not None:
        checkpoints["champion"] = await checkpoint_of(conn, against["model"], version)
        given[COMPARED_WITH] = version
    return given


async def champion(conn: AsyncConnection, model: str, alias: str) -> int | None:
    """The version that the alias stands for now; None: there is none, or no such model."""
    try:
        row = await modelling.apply(conn, registry.find_model, model)
    except NotFound:
        return None
    return await alias_version(conn, row.id, alias)


async def checkpoint_of(conn: AsyncConnection, model: str, version: int | str) -> str:
    """The checkpoint of a version: its number, or an alias. Raises NotFound."""
    row = await modelling.apply(conn, registry.find_model, model)
    number: int | None
    if isinstance(version, str) and not version.isdecimal():
        number = await alias_version(conn, row.id, version)
    else:
        number = int(version)
    found = None
    if number is not None and 0 < number <= limits.INT32:
        v = model_versions.c
        of = sa.select(v.checkpoint_uuid).where(v.model_id == row.id, v.version == number)
        found = await conn.scalar(of)
    if found is None:
        raise NotFound(f"model {row.name!r} has no version {version}")
    return str(found)


async def result_of(
    conn: AsyncConnection, now: StoredPipeline, step: PlannedStep, one: Try
) -> Result:
    """What the step's experiment, which has completed, has found. Raises Conflict."""
    found = await conn.execute(
        sa.select(trials.c.id, trials.c.hparams, metrics.c.metrics)
        .outerjoin(
            metrics,
            sa.and_(
                metrics.c.trial_id == trials.c.id,
                metrics.c.group_name == trial.GROUP,
                ~metrics.c.archived,
            ),
        )
        .where(trials.c.experiment_id == one.experiment_id)
        .order_by(metrics.c.id.desc().nulls_last())
        .limit(1)
    )
    row = found.first()
    if row is None:
        raise Conflict(f"experiment {one.experiment_id} has no trial")
    reported = dict(row.metrics or {})
    if step.kind == CHECK:
        return _checked(step, one, row.id, reported)
    return _evaluated(now, step, one, row.id, dict(row.hparams or {}), reported)


def _checked(step: PlannedStep, one: Try, trial_id: int, reported: dict[str, Any]) -> Result:
    version = reported.get(trial.DATA_VERSION)
    if not isinstance(version, str) or not 0 < len(version) <= DATA_VERSION_CHARS:
        raise Conflict(f"experiment {one.experiment_id} has reported no version of the data")
    changed = version != step.config.get("known")
    found = {DATA_VERSION: version, CHANGED: changed}
    return Result(one.experiment_id, trial_id, metrics=found)


def _evaluated(
    now: StoredPipeline,
    step: PlannedStep,
    one: Try,
    trial_id: int,
    hparams: dict[str, Any],
    reported: dict[str, Any],
) -> Result:
    try:
        comparison = ScoreComparison.read(reported.get(trial.COMPARISON))
    except ScoresError as error:
        raise Conflict(f"experiment {one.experiment_id}: {error}") from None
    checkpoints = hparams.get("checkpoints") or {}
    if comparison.had_champion != ("champion" in checkpoints):
        raise Conflict(f"experiment {one.experiment_id} compared with another champion")
    scores: dict[str, Any] = {
        name: score.challenger for name, score in comparison.metrics.items()
    } | {f"champion_{name}": score.champion for name, score in comparison.metrics.items()}
    todo = configuration(step, now.results)
    decision = None
    if todo.get("against") is not None:
        decided = decide(PromotionRule.read(todo["rule"]), comparison)
        decision = {
            **decided.to_json(),
            **todo["against"],
            "scores": comparison.to_json()["metrics"],
            "champion": hparams.get(COMPARED_WITH),
        }
        scores["better"] = decided.promote
    return Result(
        one.experiment_id,
        trial_id,
        checkpoints.get("challenger"),
        metrics={name: score for name, score in scores.items() if score is not None},
        decision=decision,
    )
