"""The runs of retrainings: their states, how one begins and how it ends."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import experiments, models, retraining_runs, retrainings
from determined_service.base import topics
from determined_service.base.errors import Conflict, NotFound
from determined_service.recurring.events import Watch
from determined_service.retraining.plans import Plan
from determined_service.state import keeping, prefect_states
from determined_service.state.change import Change

# A run is in one of these steps …
CHECKING, TRAINING, EVALUATING, PROMOTING = "CHECKING", "TRAINING", "EVALUATING", "PROMOTING"
OPEN = (CHECKING, TRAINING, EVALUATING, PROMOTING)
# … or waits for a person …
WAITING = "WAITING_FOR_APPROVAL"
# … or has ended.
PROMOTED, KEPT, SKIPPED, REJECTED = "PROMOTED", "KEPT", "SKIPPED", "REJECTED"
FAILED, CANCELED, ROLLED_BACK = "FAILED", "CANCELED", "ROLLED_BACK"

r = retraining_runs.c
t = retrainings.c


async def find(conn: AsyncConnection, model_id: int, *, lock: bool = False) -> sa.Row[Any]:
    """The retraining of the model. Raises NotFound."""
    statement = sa.select(retrainings).where(t.model_id == model_id)
    row = (await conn.execute(statement.with_for_update() if lock else statement)).first()
    if row is None:
        raise NotFound(
            f"model {model_id} is not trained again by anything: det retrain create PLAN.yaml MODEL_DIR"
        )
    return row


async def lock_run(conn: AsyncConnection, run_id: int) -> sa.Row[Any]:
    """The run, locked, with its retraining's plan, model and owner. Raises NotFound."""
    # What is joined is read by a second statement: the first would read it as it was before the wait.
    await conn.execute(sa.select(r.id).where(r.id == run_id).with_for_update())
    found = await conn.execute(
        sa.select(
            retraining_runs,
            t.model_id,
            t.owner_id,
            t.plan,
            t.config,
            t.model_def_hash,
            models.c.name.label("model"),
        )
        .join(retrainings, t.id == r.retraining_id)
        .join(models, models.c.id == t.model_id)
        .where(r.id == run_id)
    )
    row = found.first()
    if row is None:
        raise NotFound(f"retraining run {run_id} does not exist")
    return row


def watch_of(row: sa.Row[Any]) -> Watch:
    """The events that the retraining waits for."""
    plan = Plan.model_validate(row.plan)
    return watch(plan, row.id, row.model_id, row.owner_id, row.marks)


def watch(
    plan: Plan, retraining_id: int, model_id: int, owner_id: int, marks: Mapping[str, Any]
) -> Watch:
    """As :func:`watch_of`, of a retraining whose row is still to be written."""
    own = sa.exists().where(
        r.retraining_id == retraining_id,
        experiments.c.id.in_((r.check_experiment, r.training_experiment, r.evaluation_experiment)),
    )
    return Watch(plan.on, owner_id, own, marks, retraining_id, model_id, plan.alias)


async def begin(
    change: Change,
    retraining: sa.Row[Any],
    cause: str,
    *,
    forced: bool = False,
    due_at: datetime.datetime | None = None,
    flow_run_id: Any = None,
) -> int:
    """A new run of the locked retraining; its id. Raises Conflict while another one is open.

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
    replaced = await conn.execute(
        sa.update(retraining_runs)
        .where(r.retraining_id == retraining.id, r.state == WAITING)
        .values(
            state=KEPT,
            ended_at=sa.func.clock_timestamp(),
            reason=r.reason + "; a later run began before anybody approved",
        )
        .returning(r.id)
    )
    for run_id in replaced.scalars():
        show(change, run_id)
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
    if flow_run_id is None:
        await keeping.want(change, keeping.RETRAINING, run_id)
    else:
        await keeping.taken(conn, keeping.RETRAINING, run_id, flow_run_id)
    return run_id


async def update(change: Change, run_id: int, **values: Any) -> None:
    """Writes what a step has found out."""
    await change.conn.execute(sa.update(retraining_runs).where(r.id == run_id).values(values))
    change.notify(topics.RETRAININGS)
    show(change, run_id)


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


def show(change: Change, run_id: int) -> None:
    """Has the page of the run in Prefect written."""
    prefect_states.show_page(change, prefect_states.retraining_entity(run_id))


async def end(change: Change, run_id: int, state: str, reason: str, **values: Any) -> None:
    """The run has ended. ``reason``: one sentence for people."""
    await update(
        change, run_id, state=state, reason=reason, ended_at=sa.func.clock_timestamp(), **values
    )
    await keeping.ended(change, keeping.RETRAINING, run_id)


async def fail(change: Change, run: sa.Row[Any], reason: str) -> None:
    """A step of the locked run has failed: the champion stays."""
    await end(change, run.id, FAILED, reason, failed_step=run.state)
