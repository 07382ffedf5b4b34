"""Pipelines that run again, each as a new pipeline with the plan, the code and the owner of the first."""

from __future__ import annotations

import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import pipeline_steps, pipelines
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.errors import ApiError, BadRequest
from determined_service.pipelines import machine, people, rows
from determined_service.recurring.schedules import next_after
from determined_service.state.change import Change, changing

p = pipelines.c
s = pipeline_steps.c


async def again(change: Change, row: sa.Row[Any], flow_run_id: UUID | None = None) -> int:
    """Has the (locked) pipeline run again from its beginning; the id of the new one, which begins.

    ``flow_run_id``: the run in Prefect that asks; when it asks again, as its process was killed, it gets the
    pipeline that it has begun.
    """
    key = None
    if flow_run_id is not None:
        key = f"prefect/{flow_run_id}"
        known = await change.conn.execute(
            sa.select(p.id).where(p.owner_id == row.owner_id, p.idempotency_key == key)
        )
        if (mine := known.scalar_one_or_none()) is not None:
            return int(mine)
    code = await change.conn.execute(
        sa.select(s.model_def_hash).where(s.pipeline_id == row.id).order_by(s.step)
    )
    return await rows.insert(
        change,
        list(code.scalars()),
        flow_run_id,
        name=row.name,
        owner_id=row.owner_id,
        submitted_by=row.submitted_by,
        plan=row.plan,
        idempotency_key=key,
        again_of=row.id,
    )


async def set_schedule(
    db: Database, pipeline_id: int, schedule: dict[str, Any] | None
) -> datetime.datetime | None:
    """Has the pipeline run again whenever the schedule says so, from now on; when it does next. None: never
    again. Raises NotFound, BadRequest."""
    now = datetime.datetime.now(datetime.UTC)
    following = next_after(schedule, now, now)
    if schedule is not None and following is None:
        raise BadRequest("schedule: it never comes true")
    async with changing(db) as change:
        await rows.lock(change.conn, pipeline_id)
        values = {"schedule": schedule, "scheduled_at": now, "next_at": following}
        await rows.touch(change, pipeline_id, **values)
        change.notify(topics.PIPELINES)
    return following


async def due(conn: AsyncConnection) -> list[int]:
    """The pipelines that are to run again now."""
    found = await conn.execute(sa.select(p.id).where(p.next_at <= sa.func.now(), ~_RUNS))
    return list(found.scalars())


async def begin_due(db: Database, pipeline_id: int) -> int | None:
    """Runs the pipeline again if it still is due, and moves its next time on; the new one's id.

    Times that were missed, because no service ran or the run before had not ended, are one run. One that
    waits for an approval is canceled: nobody shall approve what is older than what runs.
    """
    async with changing(db) as change:
        conn = change.conn
        row = await rows.lock(conn, pipeline_id)
        now = datetime.datetime.now(datetime.UTC)
        runs = await conn.execute(sa.select(p.id).where(p.id == pipeline_id, _RUNS))
        if row.next_at is None or row.next_at > now or runs.first() is not None:
            return None
        try:
            following = next_after(row.schedule, now, row.scheduled_at, stored=True)
        except ApiError:  # a release before took it
            following = None
        await rows.touch(change, pipeline_id, next_at=following)
        waiting = await conn.execute(
            sa.select(p.id).where(_is_of(pipeline_id), p.state == machine.AWAITING).order_by(p.id)
        )
        for one in waiting.scalars().all():
            earlier = await rows.lock(conn, one)
            if earlier.state == machine.AWAITING:
                reason = "it ran again before anybody approved"
                await people.cancel_locked(change, earlier, reason)
        return await again(change, row)


def _is_of(pipeline_id: int) -> sa.ColumnElement[bool]:
    return sa.or_(p.id == pipeline_id, p.again_of == pipeline_id)


_other = pipelines.alias("other")
# Whether it, or one of its repetitions, runs.
_RUNS = sa.exists().where(
    sa.or_(_other.c.id == p.id, _other.c.again_of == p.id), _other.c.state == machine.RUNNING
)
