"""What people do with a pipeline: approve a step, cancel it, resume it, delete it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from determined.common.pipeline.kinds import PROMOTE
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
from determined_service.lifecycle import tasks as tasking
from determined_service.pipelines import comparing, machine, rows, steps, telling
from determined_service.pipelines.machine import Try
from determined_service.state import run_records, states
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
            runs = one.experiment_id is not None or one.task_id is not None
            ours = runs and not one.cached
            to = machine.STOPPING if ours else machine.CANCELED
            await rows.set_try(change, row.id, place, one, to, reason=reason)
        await rows.set_step(change, row.id, place, machine.CANCELED, reason)
    await telling.end(change, row.id, state, reason)


async def stop(db: Database, pipeline_id: int) -> None:
    """Kills the experiments and tasks that are to be killed, each in a separate transaction. May be
    repeated."""
    x = rows.x
    async with reader(db).connect() as conn:
        found = await conn.execute(
            sa.select(x.step, x.item, x.attempt, x.experiment_id, x.task_id).where(
                x.pipeline_id == pipeline_id, x.state == machine.STOPPING
            )
        )
        stopping = list(found)
    for one in stopping:
        async with changing(db) as change:
            await rows.lock(change.conn, pipeline_id)
            with contextlib.suppress(NotFound):  # it was deleted
                if one.task_id is not None:
                    await tasking.kill(change, one.task_id)
                else:
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


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """Of a user who approves a step that waits for it, or rejects it."""

    user_id: int
    username: str
    yes: bool

    def __str__(self) -> str:
        return f"{'approved' if self.yes else 'rejected'} by {self.username}"


async def answer(change: Change, pipeline_id: int, name: str | None, given: ApprovalAnswer) -> str:
    """Takes the answer to the step that waits for it; the step's name. One that promotes moves the alias in
    this transaction.

    ``name``: which step, when several wait. Raises NotFound; Conflict when none waits, or the alias has moved
    since the versions were compared.
    """
    # Models are locked before pipelines; which models those are never changes.
    before = await rows.load(change.conn, await rows.find(change.conn, pipeline_id))
    for step in before.plan.steps:
        await comparing.lock_model(change.conn, before, step)
    row = await rows.lock(change.conn, pipeline_id)
    now = await rows.load(change.conn, row)
    place, one = _asked(now, name)
    if now.plan.steps[place].kind == PROMOTE:
        await comparing.answer(change, now, place, one, given.user_id, given.yes, str(given))
    else:
        state = machine.COMPLETED if given.yes else machine.FAILED
        await rows.set_try(change, pipeline_id, place, one, state, reason=str(given))
    if row.state != machine.AWAITING:
        await telling.touch(change, pipeline_id)
        return now.plan.steps[place].name
    await telling.touch(change, pipeline_id, state=machine.RUNNING, reason=None)
    row = await rows.lock(change.conn, pipeline_id)
    await steps.settle(change, row)
    row = await rows.lock(change.conn, pipeline_id)
    if row.state == machine.RUNNING:
        await run_records.wake(change, run_records.PIPELINE, pipeline_id)
    return now.plan.steps[place].name


def _asked(now: rows.StoredPipeline, name: str | None) -> tuple[int, Try]:
    """The place and the try of the step that waits for a person."""
    asking = {
        step.name: (place, one)
        for place, (step, standing) in enumerate(zip(now.plan.steps, now.standings, strict=True))
        for one in standing.tries
        if machine.asks(step, one.state)
    }
    if not asking:
        raise Conflict(
            f"pipeline {now.row.id} is {now.row.state}: no step of it waits for an approval"
        )
    if name is None and len(asking) > 1:
        raise Conflict(f"several steps wait for an approval, name one: {', '.join(asking)}")
    chosen = next(iter(asking)) if name is None else name
    if chosen not in asking:
        raise Conflict(
            f"step {name!r} of pipeline {now.row.id} waits for no approval; these do: "
            + ", ".join(asking)
        )
    return asking[chosen]


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
        await telling.touch(change, pipeline_id, state=machine.RUNNING, reason=None, ended_at=None)
        await run_records.wake(change, run_records.PIPELINE, pipeline_id)


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
