"""The plan of a run: a pipeline of the steps check, train, evaluate and promote (:func:`plan_of`)."""

from __future__ import annotations

import re
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.pipeline import PipelinePlan as PipelinePlan
from determined.common.pipeline import PlannedStep
from determined.common.pipeline.kinds import CHECK, EVALUATE, PROMOTE
from determined_registry.database.tables import retraining_runs
from determined_service.pipelines import of_retraining as run
from determined_service.pipelines.in_trials import checkpoint_of
from determined_service.retraining.plans import Plan
from determined_service.views.models import alias_version

CODE = "code"
"""The name of the retraining's files, in the plan."""
# What a pipeline would take for its references.
_REFERENCE = re.compile(r"\$\{(?=\s*(?:steps|item|params)\b)")


async def plan_of(
    conn: AsyncConnection, retraining: sa.Row[Any], model: str, run_id: int, *, forced: bool
) -> PipelinePlan:
    """The steps of the run. What it is compared with later is found out by them; which data was trained last,
    and the champion that a training begins with, are those of now.
    """
    plan = Plan.model_validate(retraining.plan)
    config = _escaped(orjson.loads(retraining.config))
    overrides: dict[str, Any] = {}
    code = None if retraining.model_def_hash is None else CODE
    steps, when = [], None
    if plan.checks_data:
        check = await _check(conn, retraining, plan, model, run_id, forced=forced)
        steps.append(PlannedStep(run.CHECK_STEP, check, code=code, kind=CHECK))
        overrides["data.version"] = f"${{steps.{run.CHECK_STEP}.best.metrics.data_version}}"
        when = f"${{steps.{run.CHECK_STEP}.best.metrics.changed}}"
    champion = await alias_version(conn, retraining.model_id, plan.alias)
    if plan.warm_start and champion is not None:
        held = await checkpoint_of(conn, str(retraining.model_id), champion)
        overrides["searcher.source_checkpoint_uuid"] = held
        config["searcher"].pop("source_trial_id", None)
    needs = tuple(step.name for step in steps)
    given = {
        "function": plan.evaluate,
        "checkpoint": f"${{steps.{run.TRAIN_STEP}.best.checkpoint}}",
        "against": {"model": str(retraining.model_id), "alias": plan.alias},
        "rule": _escaped(plan.rule),
        "like": run.TRAIN_STEP,
        "name": _escaped(f"{model}: evaluation of run {run_id}"),
        "seed": run_id,
    }
    promotion = {"comparison": run.EVALUATE_STEP, "approval": plan.approval}
    steps += [
        PlannedStep(run.TRAIN_STEP, config, overrides, needs, code=code, when=when),
        PlannedStep(run.EVALUATE_STEP, given, needs=(run.TRAIN_STEP,), code=code, kind=EVALUATE),
        PlannedStep(run.PROMOTE_STEP, promotion, needs=(run.EVALUATE_STEP,), kind=PROMOTE),
    ]
    return PipelinePlan(f"retrain {model}", tuple(steps))


async def _check(
    conn: AsyncConnection,
    retraining: sa.Row[Any],
    plan: Plan,
    model: str,
    run_id: int,
    *,
    forced: bool,
) -> dict[str, Any]:
    given: dict[str, Any] = {"data_files": plan.data_files}
    if plan.data_version is not None:
        given = {"data_version": plan.data_version}
    given |= {
        "like": run.TRAIN_STEP,
        "name": _escaped(f"{model}: data of run {run_id}"),
    }
    r = retraining_runs.c
    found = await conn.execute(
        sa.select(r.id, r.data_version)
        .where(
            r.retraining_id == retraining.id,
            r.training_experiment.is_not(None),
            r.state.in_((run.PROMOTED, run.KEPT, run.WAITING, run.REJECTED)),
        )
        .order_by(r.id.desc())
        .limit(1)
    )
    last = found.first()
    if last is not None and last.data_version is not None and not forced:
        given |= {"known": _escaped(last.data_version), run.KNOWN_RUN: last.id}
    return given


def _escaped(value: Any) -> Any:
    """``value``, in which ``${item}`` and the like stay as they are."""
    if isinstance(value, dict):
        return {key: _escaped(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_escaped(inner) for inner in value]
    return _REFERENCE.sub("$${", value) if isinstance(value, str) else value
