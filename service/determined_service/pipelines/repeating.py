"""Pipelines that run again, each as a new pipeline with the plan, the code and the owner of the first: by
hand, on a schedule, or after an event."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.pipeline import PipelinePlan
from determined_registry.database.tables import (
    experiments,
    pipeline_experiments,
    pipeline_steps,
    pipelines,
)
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.errors import ApiError, BadRequest
from determined_service.lifecycle.places import Place, hold
from determined_service.pipelines import machine, people, rows, telling
from determined_service.recurring.events import EventWatch, first_marks, happened
from determined_service.recurring.schedules import Schedule, next_after
from determined_service.recurring.triggers import MOST, AliasMoves, ExperimentEnds, Trigger
from determined_service.state.change import Change, changing

p = pipelines.c
s = pipeline_steps.c


@dataclass(frozen=True, slots=True)
class Again:
    """When a pipeline runs again by itself."""

    schedule: dict[str, Any] | None = None
    events: tuple[Trigger, ...] = ()


def read_again(plan: PipelinePlan) -> Again:
    """What the pipeline's document says of it. Raises BadRequest."""
    schedule, events, read = None, [], "schedule"
    try:
        if plan.schedule is not None:
            schedule = Schedule.model_validate(plan.schedule).model_dump(exclude_none=True)
        for place, one in enumerate(plan.on):
            read = f"on[{place}]"
            events.append(Trigger.model_validate(one))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join([read, *map(str, first["loc"])])
        raise BadRequest(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None
    if len(events) > MOST:
        raise BadRequest(f"on: {len(events)} events found, at most {MOST} are allowed")
    for place, trigger in enumerate(events):
        if not isinstance(trigger.event, AliasMoves | ExperimentEnds):
            raise BadRequest(
                f"on[{place}]: a pipeline runs again after alias or experiment; new_data and live_metric are "
                "for retrainings (det retrain)"
            )
    if len({one.key for one in events}) != len(events):
        raise BadRequest("on: the same event stands there twice")
    return Again(schedule, tuple(events))


async def columns(conn: AsyncConnection, given: Again, owner_id: int) -> dict[str, Any]:
    """The columns of a new pipeline that say so; times and events count from now on.

    Raises BadRequest, NotFound.
    """
    found = _from_now(given.schedule) if given.schedule is not None else {}
    if given.events:
        found["events"] = [one.model_dump(exclude_none=True) for one in given.events]
        found["marks"] = await first_marks(conn, EventWatch(given.events, owner_id))
    return found


def _from_now(schedule: dict[str, Any] | None) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC)
    following = next_after(schedule, now, now)
    if schedule is not None and following is None:
        raise BadRequest("schedule: it never comes true")
    return {"schedule": schedule, "scheduled_at": now, "next_at": following}


def _watch(row: sa.Row[Any]) -> EventWatch:
    """The events that a pipeline waits for. Its experiments, and those of its repetitions, do not count."""
    x = pipeline_experiments.c
    own = sa.exists().where(
        x.experiment_id == experiments.c.id, x.pipeline_id == _other.c.id, _is_of(row.id, _other)
    )
    triggers = [Trigger.model_validate(one) for one in row.events or ()]
    return EventWatch(triggers, row.owner_id, own, row.marks)


async def again(
    change: Change, row: sa.Row[Any], flow_run_id: UUID | None = None, cause: str | None = None
) -> int:
    """Has the (locked) pipeline run again from its beginning; the id of the new one, which begins.

    ``cause``: why it runs again by itself. ``flow_run_id``: the run in Prefect that asks; when it asks again,
    as its process was killed, it gets the pipeline that it has begun.
    """
    key = None
    if flow_run_id is not None:
        key = f"prefect/{flow_run_id}"
        known = await change.conn.execute(
            sa.select(p.id).where(p.owner_id == row.owner_id, p.idempotency_key == key)
        )
        if (mine := known.scalar_one_or_none()) is not None:
            return int(mine)
    await hold(change.conn, Place(workspace_id=row.workspace_id, project_id=None))
    code = await change.conn.execute(
        sa.select(s.model_def_hash).where(s.pipeline_id == row.id).order_by(s.step)
    )
    return await rows.insert(
        change,
        list(code.scalars()),
        flow_run_id,
        name=row.name,
        owner_id=row.owner_id,
        workspace_id=row.workspace_id,
        project_id=row.project_id,
        submitted_by=row.submitted_by,
        plan=row.plan,
        idempotency_key=key,
        again_of=row.id,
        cause=cause,
    )


async def set_schedule(
    db: Database, pipeline_id: int, schedule: dict[str, Any] | None
) -> datetime.datetime | None:
    """Has the pipeline run again whenever the schedule says so, from now on; when it does next. None: never
    again, also after no event. Raises NotFound, BadRequest."""
    values = _from_now(schedule)
    async with changing(db) as change:
        await rows.lock(change.conn, pipeline_id)
        if schedule is None:
            values |= {"events": None, "marks": {}}
        await telling.touch(change, pipeline_id, **values)
        change.notify(topics.PIPELINES)
    following: datetime.datetime | None = values["next_at"]
    return following


async def due(conn: AsyncConnection) -> list[int]:
    """The pipelines that are to run again now, by their schedules."""
    found = await conn.execute(sa.select(p.id).where(p.next_at <= sa.func.now(), ~_RUNS))
    return list(found.scalars())


async def stirred(conn: AsyncConnection) -> list[int]:
    """The pipelines that are to run again now because of an event."""
    waiting = await conn.execute(sa.select(pipelines).where(p.events.is_not(None), ~_RUNS))
    return [row.id for row in waiting.all() if (await happened(conn, _watch(row))).causes]


async def begin_due(db: Database, pipeline_id: int) -> int | None:
    """Runs the pipeline again if it still is due, and moves its next time and its events on; the new one's
    id.

    Times that were missed, because no service ran or the run before had not ended, are one run. One that
    waits for an approval is canceled: nobody shall approve what is older than what runs.
    """
    async with changing(db) as change:
        conn = change.conn
        row = await rows.lock(conn, pipeline_id)
        now = datetime.datetime.now(datetime.UTC)
        runs = await conn.execute(sa.select(p.id).where(p.id == pipeline_id, _RUNS))
        if runs.first() is not None:
            return None
        is_due = row.next_at is not None and row.next_at <= now
        seen = await happened(conn, _watch(row))
        if not is_due and not seen.causes:
            return None
        values: dict[str, Any] = {"marks": seen.marks}
        if is_due:
            values["next_at"] = _following(row, now)
        await telling.touch(change, pipeline_id, **values)
        waiting = await conn.execute(
            sa.select(p.id)
            .where(_is_of(pipeline_id, pipelines), p.state == machine.AWAITING)
            .order_by(p.id)
        )
        for one in waiting.scalars().all():
            earlier = await rows.lock(conn, one)
            if earlier.state == machine.AWAITING:
                reason = "it ran again before anybody approved"
                await people.cancel_locked(change, earlier, reason)
        causes = [*(["schedule"] if is_due else []), *seen.causes]
        return await again(change, row, cause="; ".join(causes))


def _following(row: sa.Row[Any], now: datetime.datetime) -> datetime.datetime | None:
    try:
        return next_after(row.schedule, now, row.scheduled_at, stored=True)
    except ApiError:  # a release before took it
        return None


def _is_of(pipeline_id: int, table: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.or_(table.c.id == pipeline_id, table.c.again_of == pipeline_id)


_other = pipelines.alias("other")
# Whether it, or one of its repetitions, runs.
_RUNS = sa.exists().where(
    sa.or_(_other.c.id == p.id, _other.c.again_of == p.id), _other.c.state == machine.RUNNING
)
