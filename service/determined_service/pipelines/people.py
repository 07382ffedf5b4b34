"""What people do with a pipeline: approve a step, cancel it, resume it, delete it."""

from __future__ import annotations

import contextlib
from typing import Any

import sqlalchemy as sa

from determined.common.pipeline.kinds import APPROVAL
from determined_registry.database.tables import (
    experiments,
    model_definitions,
    pipeline_steps,
    pipelines,
    retrainings,
    tasks,
)
from determined_service.base.db import Database
from determined_service.base.errors import Conflict, NotFound
from determined_service.lifecycle import experiments as experimenting
from determined_service.pipelines import machine, rows
from determined_service.pipelines.machine import Try
from determined_service.state import keeping, states
from determined_service.state.change import Change, changing, reader


async def cancel(db: Database, pipeline_id: int, reason: str) -> None:
    """Ends the pipeline and kills its experiments. Raises NotFound; Conflict when it has ended."""
    async with changing(db) as change:
        row = await rows.lock(change.conn, pipeline_id)
        if row.state not in machine.OPEN:
            raise Conflict(
                f"pipeline {pipeline_id} is {row.state}: only one that runs can be canceled"
            )
        await cancel_locked(change, row, reason)
    await stop(db, pipeline_id)


async def cancel_locked(
    change: Change, row: sa.Row[Any], reason: str, state: str = machine.CANCELED
) -> None:
    """As :func:`cancel`; :func:`stop` must follow, and does so from the leader when this process dies."""
    now = await rows.load(change.conn, row)
    for place, standing in enumerate(now.standings):
        if standing.state in machine.ENDED:
            continue
        for one in standing.tries:
            if one.state in machine.ENDED:
                continue
            # What was found in the cache is somebody else's.
            ours = one.experiment_id is not None and not one.cached
            to = machine.STOPPING if ours else machine.CANCELED
            await rows.set_try(change, row.id, place, one, to, reason=reason)
        await rows.set_step(change, row.id, place, machine.CANCELED, reason)
    await rows.end(change, row.id, state, reason)


async def stop(db: Database, pipeline_id: int) -> None:
    """Kills the experiments that are to be killed, each in a transaction of its own. May be repeated."""
    x = rows.x
    async with reader(db).connect() as conn:
        found = await conn.execute(
            sa.select(x.step, x.item, x.attempt, x.experiment_id).where(
                x.pipeline_id == pipeline_id, x.state == machine.STOPPING
            )
        )
        stopping = list(found)
    for one in stopping:
        async with changing(db) as change:
            await rows.lock(change.conn, pipeline_id)
            with contextlib.suppress(NotFound):  # it was deleted
                await experimenting.kill(change, one.experiment_id)
            which = Try(one.item, one.attempt, machine.STOPPING)
            await rows.set_try(change, pipeline_id, one.step, which, machine.CANCELED)


async def stop_all(db: Database) -> None:
    """As :func:`stop`, for every pipeline of which a process that died has left experiments to be killed."""
    async with reader(db).connect() as conn:
        found = await conn.execute(_STOPPING)
    for pipeline_id in found.scalars():
        await stop(db, pipeline_id)


_STOPPING = sa.select(rows.x.pipeline_id).where(rows.x.state == machine.STOPPING).distinct()


async def answer(db: Database, pipeline_id: int, name: str | None, username: str, yes: bool) -> str:
    """A person approves the step that waits for it, or rejects it; the step's name.

    ``name``: which one, when several wait. Raises NotFound, and Conflict when none waits.
    """
    async with changing(db) as change:
        row = await rows.lock(change.conn, pipeline_id)
        now = await rows.load(change.conn, row)
        asking = {
            step.name: (place, standing.tries[0])
            for place, (step, standing) in enumerate(
                zip(now.plan.steps, now.standings, strict=True)
            )
            if step.kind == APPROVAL
            and standing.state == machine.RUNNING
            and standing.tries[0].state == machine.RUNNING
        }
        if not asking:
            raise Conflict(
                f"pipeline {pipeline_id} is {row.state}: no step of it waits for an approval"
            )
        if name is None and len(asking) > 1:
            raise Conflict(f"several steps wait for an approval, name one: {', '.join(asking)}")
        chosen = next(iter(asking)) if name is None else name
        if chosen not in asking:
            raise Conflict(
                f"step {name!r} of pipeline {pipeline_id} waits for no approval; these do: "
                + ", ".join(asking)
            )
        place, one = asking[chosen]
        how, state = ("approved", machine.COMPLETED) if yes else ("rejected", machine.FAILED)
        reason = f"{how} by {username}"
        await rows.set_try(change, pipeline_id, place, one, state, reason=reason)
        if row.state == machine.AWAITING:
            await rows.touch(change, pipeline_id, state=machine.RUNNING, reason=None)
            await keeping.wake(change, keeping.PIPELINE, pipeline_id)
        else:
            await rows.touch(change, pipeline_id)
    return chosen


async def resume(db: Database, pipeline_id: int) -> None:
    """What failed or was canceled is tried again; what has completed stays.

    Raises NotFound; Conflict when there is nothing to resume.
    """
    await stop(db, pipeline_id)
    async with changing(db) as change:
        row = await rows.lock(change.conn, pipeline_id)
        if row.state not in (machine.FAILED, machine.CANCELED):
            raise Conflict(
                f"pipeline {pipeline_id} is {row.state}: only one that failed or was canceled can be resumed"
            )
        now = await rows.load(change.conn, row)
        for place, standing in enumerate(now.standings):
            if standing.state == machine.COMPLETED:
                continue
            for one in standing.tries:
                if one.state != machine.COMPLETED:
                    await _try_again(change, pipeline_id, place, one)
            state = machine.RUNNING if standing.tries else machine.WAITING
            await rows.set_step(change, pipeline_id, place, state)
        await rows.touch(change, pipeline_id, state=machine.RUNNING, reason=None, ended_at=None)
        await keeping.wake(change, keeping.PIPELINE, pipeline_id)


async def _try_again(change: Change, pipeline_id: int, place: int, one: Try) -> None:
    e = experiments.c
    found = await change.conn.execute(sa.select(e.state).where(e.id == one.experiment_id))
    state = found.scalar_one_or_none()
    if state in (*states.RUNNABLE, states.STOPPING_COMPLETED, states.COMPLETED):
        # Somebody has continued it since.
        await rows.set_try(change, pipeline_id, place, one, machine.RUNNING, reason=None)
    else:
        await rows.add_try(change, pipeline_id, place, one.item, one.attempt + 1)


async def delete(db: Database, pipeline_id: int) -> None:
    """Forgets the pipeline; its experiments stay. Raises NotFound; Conflict while it runs."""
    await stop(db, pipeline_id)
    async with changing(db) as change:
        row = await rows.lock(change.conn, pipeline_id)
        if row.state in machine.OPEN:
            raise Conflict(
                f"pipeline {pipeline_id} runs: wait for its end, or cancel it "
                f"(`det pipeline cancel {pipeline_id}`)"
            )
        step = pipeline_steps.c
        found = await change.conn.execute(
            sa.select(step.model_def_hash).where(step.pipeline_id == pipeline_id)
        )
        hashes = {one for one in found.scalars() if one is not None}
        await change.conn.execute(sa.delete(pipelines).where(pipelines.c.id == pipeline_id))
        known = model_definitions.c.hash
        await change.conn.execute(
            sa.delete(model_definitions).where(
                known.in_(hashes),
                *(
                    ~sa.exists().where(table.c.model_def_hash == known)
                    for table in (experiments, retrainings, pipeline_steps, tasks)
                ),
            )
        )
