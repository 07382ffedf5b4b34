"""Steps that promote what an evaluation has found to be better than the champion.

The decision was written with the evaluation's end, before anything is done with it. The version, the alias
and the step's end are one transaction, in which the model's row is locked: so an alias that somebody has
moved since the comparison is seen. Then the checkpoint is evaluated again, or an approval refused.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.pipeline import PlannedStep, Result
from determined_registry import models as registry
from determined_registry.database.tables import pipeline_experiments
from determined_service.base.errors import Conflict, NotFound
from determined_service.lifecycle import models as modelling
from determined_service.pipelines import machine, rows
from determined_service.pipelines.in_trials import DATA_VERSION, champion
from determined_service.pipelines.machine import Try
from determined_service.pipelines.of_retraining import CHECK_STEP
from determined_service.pipelines.promoting import register
from determined_service.pipelines.rows import StoredPipeline
from determined_service.state.change import Change

EVALUATIONS = 3
"""How often a checkpoint is evaluated, while people move the alias meanwhile."""
MOVED = "the alias was moved by somebody during the evaluation: evaluated again"


async def lock_model(conn: AsyncConnection, now: StoredPipeline, step: PlannedStep) -> None:
    """Locks the model of a step that compares, if there is one."""
    of = step.config.get("comparison")
    if of is None:
        return
    try:
        against = now.plan.step(of).config["against"]
        await modelling.apply(conn, registry.find_model, against["model"], lock=True)
    except NotFound:
        pass  # it is made when the step promotes


async def promote(
    change: Change, row: sa.Row[Any], now: StoredPipeline, place: int, one: Try
) -> None:
    """Registers the version, and moves the alias if that was decided and nobody must approve it.

    Raises BadRequest, NotFound, Forbidden, Conflict.
    """
    step = now.plan.steps[place]
    (compared,) = now.results[step.config["comparison"]]
    assert compared.decision is not None
    decision = compared.decision
    if await champion(change.conn, decision["model"], decision["alias"]) != decision["champion"]:
        await _evaluate_again(change, now, place)
        return
    version = await _version(change, row, now, place, compared)
    if await champion(change.conn, decision["model"], decision["alias"]) != decision["champion"]:
        # There was no model whose row could be locked before.
        raise Conflict(f"model {decision['model']!r} was made by somebody meanwhile: run it again")
    found = Result(
        checkpoint=compared.checkpoint,
        metrics={"version": version, "promoted": False},
        decision=decision,
    )
    if not decision["promote"]:
        state, reason = machine.COMPLETED, decision["reason"]
    elif step.config.get("approval"):
        asks = (
            f"{decision['reason']} (det pipeline approve {row.id} --step {step.name}: version {version} "
            f"becomes {decision['alias']} of model {decision['model']})"
        )
        await rows.set_step(change, row.id, place, machine.RUNNING, asks)
        state, reason = machine.RUNNING, decision["reason"]
    else:
        found = await _move(change, found, row.owner_id)
        state, reason = machine.COMPLETED, decision["reason"]
    await rows.set_try(change, row.id, place, one, state, reason=reason, result=asdict(found))


async def answer(
    change: Change, now: StoredPipeline, place: int, one: Try, user_id: int, yes: bool, words: str
) -> None:
    """A person has approved the promotion that waits, or rejected it. Raises Conflict when the alias has
    moved since the comparison."""
    assert one.result is not None and one.result.decision is not None
    found, decision = one.result, one.result.decision
    if yes:
        standing = await champion(change.conn, decision["model"], decision["alias"])
        if standing != decision["champion"]:
            version = found.metrics["version"]
            raise Conflict(
                f"{decision['alias']} stands for version {standing} now, but version {version} was compared "
                f"with version {decision['champion']}: nothing is changed; run it again, or reject this"
            )
        found = await _move(change, found, user_id)
    else:
        found = replace(found, metrics={**found.metrics, "rejected": True})
    done = {"reason": f"{decision['reason']}; {words}", "result": asdict(found)}
    await rows.set_try(change, now.row.id, place, one, machine.COMPLETED, **done)


async def _move(change: Change, found: Result, user_id: int) -> Result:
    decision, version = found.decision, found.metrics["version"]
    assert decision is not None
    await modelling.apply(
        change.conn, registry.set_alias, decision["model"], decision["alias"], version, user_id
    )
    return replace(found, metrics={**found.metrics, "promoted": True})


async def _evaluate_again(change: Change, now: StoredPipeline, place: int) -> None:
    """The step of the evaluation runs once more, and this one waits for it."""
    of = next(
        at
        for at, step in enumerate(now.plan.steps)
        if step.name == now.plan.steps[place].config["comparison"]
    )
    (last,) = now.standings[of].tries
    if last.attempt >= EVALUATIONS:
        raise Conflict(
            f"somebody moved the alias during each of {last.attempt} evaluations: nothing is changed"
        )
    x = rows.x
    mine = sa.delete(pipeline_experiments).where(x.pipeline_id == now.row.id, x.step == place)
    await change.conn.execute(mine)
    await rows.set_step(change, now.row.id, place, machine.WAITING)
    await rows.set_step(change, now.row.id, of, machine.RUNNING, MOVED)
    await rows.add_try(change, now.row.id, of, last.item, last.attempt + 1)


async def _version(
    change: Change, row: sa.Row[Any], now: StoredPipeline, place: int, compared: Result
) -> int:
    decision = compared.decision
    assert decision is not None
    noted = {key: decision[key] for key in ("scores", "champion")}
    noted["promoted"] = decision["promote"]
    if row.retraining_run_id is None:
        step = now.plan.steps[place].name
        of, whose = "pipeline", f"pipeline {row.id}, step {step}"
        noted |= {"id": row.id, "step": step}
    else:
        of, whose = "retraining", f"retraining run {row.retraining_run_id}"
        data = [one.metrics.get(DATA_VERSION) for one in now.results.get(CHECK_STEP, ())]
        noted |= {"run": row.retraining_run_id, "data_version": data[0] if data else None}
    todo = {**decision, "checkpoint": compared.checkpoint}
    comment = f"{whose}: {decision['reason']}"[:1_000]
    return await register(change.conn, row, todo, comment, {of: noted})
