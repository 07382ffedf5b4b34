"""The runs of retrainings: how one begins, as a pipeline."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import (
    experiments,
    models,
    pipelines,
    retraining_runs,
    retrainings,
)
from determined_service.access.targets import Kind
from determined_service.base import topics
from determined_service.base.errors import Conflict, NotFound
from determined_service.lifecycle import places
from determined_service.lifecycle.places import Named
from determined_service.pipelines import machine, people, rows
from determined_service.pipelines.of_retraining import CHECKING, OPEN, TRAINING
from determined_service.recurring.events import EventWatch
from determined_service.retraining.as_pipeline import plan_of
from determined_service.retraining.plans import Plan
from determined_service.state import prefect_states
from determined_service.state.change import Change

r = retraining_runs.c
t = retrainings.c
p = pipelines.c


async def find(conn: AsyncConnection, model_id: int, *, lock: bool = False) -> sa.Row[Any]:
    """The retraining of the model. Raises NotFound."""
    statement = sa.select(retrainings).where(t.model_id == model_id)
    row = (await conn.execute(statement.with_for_update() if lock else statement)).first()
    if row is None:
        raise NotFound(
            f"model {model_id} is not trained again by anything: det retrain create PLAN.yaml MODEL_DIR"
        )
    return row


def watch_of(row: sa.Row[Any]) -> EventWatch:
    """The events that the retraining waits for."""
    plan = Plan.model_validate(row.plan)
    return watch(plan, row.id, row.model_id, row.owner_id, row.marks)


def watch(
    plan: Plan, retraining_id: int, model_id: int, owner_id: int, marks: Mapping[str, Any]
) -> EventWatch:
    """As :func:`watch_of`, of a retraining whose row is still to be written."""
    own = sa.exists().where(
        r.retraining_id == retraining_id,
        experiments.c.id.in_((r.check_experiment, r.training_experiment, r.evaluation_experiment)),
    )
    return EventWatch(plan.on, owner_id, own, marks, retraining_id, model_id, plan.alias)


async def begin(
    change: Change,
    retraining: sa.Row[Any],
    cause: str,
    *,
    forced: bool = False,
    due_at: datetime.datetime | None = None,
    flow_run_id: Any = None,
) -> int:
    """A new run of the locked retraining; its id. Raises Conflict while another one is open, or its
    project is archived; BadRequest when there is none of that name any more.

    ``flow_run_id``: the run in Prefect that asks; when it asks again, as its process was killed, it gets the
    run that it has begun.
    """
    conn = change.conn
    if flow_run_id is not None:
        known = await conn.execute(
            sa.select(r.id).where(r.retraining_id == retraining.id, r.begun_by == flow_run_id)
        )
        if (mine := known.scalar_one_or_none()) is not None:
            return int(mine)
    found = await conn.execute(
        sa.select(r.id, r.state).where(r.retraining_id == retraining.id, r.state.in_(OPEN))
    )
    if (other := found.first()) is not None:
        raise Conflict(
            f"run {other.id} of this retraining is {other.state}: two never run at the same time; wait "
            "for it, or end it with `det retrain cancel`"
        )
    of = sa.select(models.c.name, models.c.workspace_id).where(models.c.id == retraining.model_id)
    model, workspace_id = (await conn.execute(of)).one()
    names = orjson.loads(retraining.config)
    named = Named(names.get("workspace") or "", names.get("project") or "")
    place = await places.find(conn, None, named, Kind.EXPERIMENT, lock=True)
    await _replace_waiting(change, retraining.id)
    plan = Plan.model_validate(retraining.plan)
    made = await conn.execute(
        sa.insert(retraining_runs)
        .values(
            retraining_id=retraining.id,
            state=CHECKING if plan.checks_data else TRAINING,
            cause=cause,
            due_at=due_at,
            forced=forced,
            begun_by=flow_run_id,
        )
        .returning(r.id)
    )
    change.notify(topics.RETRAININGS)
    run_id = int(made.scalar_one())
    whole = await plan_of(conn, retraining, model, run_id, forced=forced)
    await rows.insert(
        change,
        [None if step.code is None else retraining.model_def_hash for step in whole.steps],
        flow_run_id,
        name=model,
        owner_id=retraining.owner_id,
        workspace_id=workspace_id,
        project_id=place.project_id,
        plan=orjson.dumps(whole.to_json()).decode(),
        retraining_run_id=run_id,
    )
    return run_id


async def _replace_waiting(change: Change, retraining_id: int) -> None:
    """Ends the run that waits for an approval: nobody shall approve what is older than what runs."""
    found = await change.conn.execute(
        sa.select(p.id)
        .join(retraining_runs, r.id == p.retraining_run_id)
        .where(r.retraining_id == retraining_id, p.state == machine.AWAITING)
    )
    for pipeline_id in found.scalars().all():
        row = await rows.lock(change.conn, pipeline_id)
        if row.state == machine.AWAITING:
            reason = "a later run began before anybody approved"
            await people.cancel_locked(change, row, reason)


async def pipeline_of(conn: AsyncConnection, run_id: int) -> int:
    """The pipeline that the run is."""
    found = await conn.execute(sa.select(p.id).where(p.retraining_run_id == run_id))
    return int(found.scalar_one())


TAGS = ("determined", "retraining")
"""Of its run in Prefect."""


def named(run_id: int, model: str) -> str:
    """What its run in Prefect is called."""
    return f"retrain {model} #{run_id}"


def name(change: Change, run_id: int, model: str) -> None:
    """Has the run in Prefect that began it called so."""
    entity = prefect_states.retraining_entity(run_id)
    name = named(run_id, model)
    change.tell_prefect(entity, prefect_states.NAME_RUN, name=name, tags=list(TAGS))
