"""What people do: create a retraining, change it, approve or reject a run, cancel it, roll back."""

from __future__ import annotations

import datetime
from typing import Any

import orjson
import sqlalchemy as sa

from determined import expconf
from determined_registry import models as registry
from determined_registry.database.tables import (
    model_alias_history,
    pipelines,
    retraining_runs,
    retrainings,
)
from determined_service.base import topics
from determined_service.base.errors import Conflict, NotFound
from determined_service.base.settings import Settings
from determined_service.lifecycle import models as modelling
from determined_service.lifecycle import surroundings
from determined_service.lifecycle.quotas import require_room
from determined_service.pipelines import machine, of_retraining, rows, telling
from determined_service.pipelines import people as of_pipelines
from determined_service.recurring import events
from determined_service.retraining import runs
from determined_service.retraining.plans import Plan
from determined_service.state.change import Change
from determined_service.submission import submit
from determined_service.submission.definition_store import store_definition
from determined_service.views.models import alias_version

t = retrainings.c


def as_json(text: str) -> str:
    """The configuration as JSON text, which is quickly read again. Raises ConfigError."""
    return orjson.dumps(expconf.load_yaml(text).data).decode()


async def put(
    change: Change,
    settings: Settings,
    model: str,
    plan: Plan,
    submission: submit.SubmissionRequest,
    prepared: submit.PreparedExperiment,
    config: str,
    owner_id: int,
) -> tuple[int, list[str]]:
    """Makes the model's retraining, or replaces it (its history stays); the model's id, and what of its
    configuration is not heeded where it will run, in words.

    Raises NotFound, BadRequest, OverQuota; Conflict while a run is open, which goes by what there was at its
    beginning.
    """
    conn = change.conn
    # Locked, so that two requests come one after the other.
    locked = await modelling.apply(conn, registry.find_model, model, lock=True)
    model_id: int = locked.id
    found = await conn.execute(
        sa.select(t.id, t.marks).where(t.model_id == model_id).with_for_update()
    )
    before = found.first()
    if before is not None:
        await _require_quiet(change, before.id)
    planned = await submit.plan(conn, submission, prepared, settings, owner_id)
    definition, is_new = planned.model_definition, False
    if definition is not None:
        is_new = await store_definition(conn, definition, owner_id)
    now = datetime.datetime.now(datetime.UTC)
    values: dict[str, Any] = {
        "owner_id": owner_id,
        "plan": plan.model_dump(),
        "config": config,
        "model_def_hash": planned.model_def_hash,
        "paused": False,
        "next_at": plan.next_after(now, now),
        "marks": await events.first_marks(
            conn,
            runs.watch(plan, 0, model_id, owner_id, {} if before is None else before.marks),
        ),
        "created_at": now,
    }
    if before is not None:
        await conn.execute(sa.update(retrainings).where(t.id == before.id).values(values))
    else:
        await conn.execute(sa.insert(retrainings).values(model_id=model_id, **values))
    change.notify(topics.RETRAININGS)
    remarks = await surroundings.remarks(
        conn, planned.config, planned.resource_pool, original=submission.config
    )
    if is_new:
        await require_room(conn, settings.cluster.quotas, owner_id, "model_definition_bytes")
    return model_id, [*remarks, *planned.remarks]


async def _require_quiet(change: Change, retraining_id: int) -> None:
    if await _newest(change, retraining_id, runs.r.state.in_(of_retraining.OPEN)) is not None:
        raise Conflict(
            "a run of this retraining is open: wait for its end, or end it (`det retrain cancel`)"
        )


async def pause(change: Change, model_id: int, paused: bool) -> None:
    """Stops the schedule and the events, or lets them go on from now: what was missed while they were paused
    is not caught up.
    """
    row = await runs.find(change.conn, model_id, lock=True)
    if row.paused == paused:
        return
    values: dict[str, Any] = {"paused": paused}
    if not paused:
        now = datetime.datetime.now(datetime.UTC)
        plan = Plan.model_validate(row.plan)
        values["next_at"] = plan.next_after(now, row.created_at, stored=True)
        values["marks"] = await events.first_marks(
            change.conn, runs.watch(plan, row.id, model_id, row.owner_id, {})
        )
    await change.conn.execute(sa.update(retrainings).where(t.id == row.id).values(values))
    change.notify(topics.RETRAININGS)


async def answer(change: Change, model_id: int, given: of_pipelines.ApprovalAnswer) -> int:
    """A person approves the run that waits, or rejects it; the run's id.

    Raises Conflict when none waits, or the alias was moved since the challenger was compared.
    """
    retraining = await runs.find(change.conn, model_id)
    run = await _current(change, retraining.id, of_retraining.WAITING)
    if run is None:
        raise Conflict("no run of this retraining waits for an approval (`det retrain history`)")
    await of_pipelines.answer(change, run.pipeline_id, None, given)
    return int(run.id)


async def cancel(change: Change, model_id: int, username: str) -> tuple[int, int]:
    """Ends the open run; its id and its pipeline's, whose experiment is then to be stopped
    (:func:`~determined_service.pipelines.people.stop`). Raises Conflict when none is open."""
    retraining = await runs.find(change.conn, model_id, lock=True)
    run = await _current(change, retraining.id, *of_retraining.OPEN)
    row = None if run is None else await rows.lock(change.conn, run.pipeline_id)
    if run is None or row is None or row.state != machine.RUNNING:
        raise Conflict("no run of this retraining is open (`det retrain history`)")
    await of_pipelines.cancel_locked(change, row, f"canceled by {username}")
    return run.id, row.id


async def _current(change: Change, retraining_id: int, *states: str) -> sa.Row[Any] | None:
    """The run that is in one of the states, and its pipeline, which the caller locks."""
    found = await change.conn.execute(
        sa.select(runs.r.id, runs.p.id.label("pipeline_id"))
        .join(pipelines, runs.p.retraining_run_id == runs.r.id)
        .where(runs.r.retraining_id == retraining_id, runs.r.state.in_(states))
    )
    return found.first()


async def _newest(
    change: Change, retraining_id: int, wanted: sa.ColumnElement[bool]
) -> sa.Row[Any] | None:
    found = await change.conn.execute(
        sa.select(retraining_runs)
        .where(runs.r.retraining_id == retraining_id, wanted)
        .order_by(runs.r.id.desc())
        .limit(1)
        .with_for_update()
    )
    return found.first()


async def roll_back(
    change: Change, model_id: int, user_id: int, username: str, to: int | None
) -> tuple[int, int]:
    """The alias stands for ``to`` again, or for what it stood for before its last move: (from, to).

    Raises NotFound, Conflict.
    """
    # The model's row first, as whoever puts a retraining locks it.
    await modelling.apply(change.conn, registry.find_model, model_id, lock=True)
    retraining = await runs.find(change.conn, model_id, lock=True)
    alias = Plan.model_validate(retraining.plan).alias
    standing = await alias_version(change.conn, model_id, alias)
    if standing is None:
        raise NotFound(f"{alias} stands for no version, so there is nothing to roll back")
    if to is None:
        to = await _before(change, model_id, alias, standing)
    await modelling.apply(change.conn, registry.set_alias, model_id, alias, to, user_id)
    reason = f"{username} rolled {alias} back from version {standing} to version {to}"
    await change.conn.execute(
        sa.insert(retraining_runs).values(
            retraining_id=retraining.id,
            state=of_retraining.ROLLED_BACK,
            cause=username,
            champion_version=standing,
            version=to,
            reason=reason,
            ended_at=sa.func.clock_timestamp(),
        )
    )
    change.notify(topics.RETRAININGS)
    newest = await change.conn.execute(
        sa.select(runs.p.id)
        .join(retraining_runs, runs.r.id == runs.p.retraining_run_id)
        .where(runs.r.retraining_id == retraining.id)
        .order_by(runs.r.id.desc())
        .limit(1)
    )
    if (pipeline_id := newest.scalar_one_or_none()) is not None:
        await telling.touch(change, pipeline_id)  # its page shows the history
    return standing, to


async def _before(change: Change, model_id: int, alias: str, standing: int) -> int:
    h = model_alias_history.c
    found = await change.conn.execute(
        sa.select(h.from_version)
        .where(h.model_id == model_id, h.alias == alias, h.to_version == standing)
        .order_by(h.id.desc())
        .limit(1)
    )
    before: int | None = found.scalar_one_or_none()
    if before is None:
        raise Conflict(
            f"{alias} stood for no version before version {standing}: say which with --to VERSION"
        )
    return before


async def delete(change: Change, model_id: int) -> None:
    """The model is not trained again any more, and its history goes. Raises Conflict while a run is open."""
    retraining = await runs.find(change.conn, model_id, lock=True)
    await _require_quiet(change, retraining.id)
    # Before the runs, as who approves does.
    mine = sa.select(runs.r.id).where(runs.r.retraining_id == retraining.id)
    theirs = sa.select(runs.p.id).where(runs.p.retraining_run_id.in_(mine)).with_for_update()
    await change.conn.execute(theirs)
    await change.conn.execute(sa.delete(retrainings).where(t.id == retraining.id))
