"""The rows of pipelines: found, locked and changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.pipeline import PipelinePlan, Result
from determined_registry.database.tables import (
    pipeline_experiments,
    pipeline_steps,
    pipelines,
    users,
    workspaces,
)
from determined_service.access.roles import HAS_ROLES, assigned_to
from determined_service.base import topics
from determined_service.base.errors import NotFound
from determined_service.pipelines.machine import ENDED, RUNNING, WAITING, StepState, Try
from determined_service.state import run_records
from determined_service.state.change import Change

p = pipelines.c
s = pipeline_steps.c
x = pipeline_experiments.c

# The last try of each item.
CURRENT = (
    sa.select(pipeline_experiments)
    .distinct(x.pipeline_id, x.step, x.item)
    .order_by(x.pipeline_id, x.step, x.item, x.attempt.desc())
)


@dataclass(frozen=True, slots=True)
class StoredPipeline:
    """One pipeline as it stands. ``results``: by step that has completed, in the order of its items."""

    row: sa.Row[Any]
    plan: PipelinePlan
    steps: list[sa.Row[Any]]
    standings: list[StepState]
    results: dict[str, list[Result]]


async def lock(conn: AsyncConnection, pipeline_id: int) -> sa.Row[Any]:
    """As :func:`find`, locked."""
    # What is joined is read by a second statement: the first would read it as it was before the wait.
    await conn.execute(sa.select(p.id).where(p.id == pipeline_id).with_for_update())
    return await find(conn, pipeline_id)


async def find(conn: AsyncConnection, pipeline_id: int) -> sa.Row[Any]:
    """The pipeline's row, with its owner's name, activity and rights (``admin``, ``roles``, ``has_roles``:
    see :func:`~determined_service.access.roles.standing`) and its workspace's name. Raises NotFound."""
    found = await conn.execute(
        sa.select(
            pipelines,
            users.c.username,
            users.c.active,
            users.c.admin,
            assigned_to(users.c.id).label("roles"),
            HAS_ROLES.label("has_roles"),
            workspaces.c.name.label("workspace"),
        )
        .join(users, users.c.id == p.owner_id)
        .join(workspaces, workspaces.c.id == p.workspace_id)
        .where(p.id == pipeline_id)
    )
    row = found.first()
    if row is None:
        raise NotFound(f"pipeline {pipeline_id} does not exist")
    return row


async def load(conn: AsyncConnection, row: sa.Row[Any]) -> StoredPipeline:
    """All of the (locked) pipeline."""
    plan = PipelinePlan.from_json(orjson.loads(row.plan))
    steps = list(
        await conn.execute(
            sa.select(pipeline_steps).where(s.pipeline_id == row.id).order_by(s.step)
        )
    )
    tries: dict[int, list[sa.Row[Any]]] = {}
    for one in await conn.execute(CURRENT.where(x.pipeline_id == row.id)):
        tries.setdefault(one.step, []).append(one)
    standings = [
        StepState(
            step.state,
            tuple(
                Try(
                    one.item,
                    one.attempt,
                    one.state,
                    one.reason,
                    one.experiment_id,
                    one.cached,
                    one.task_id,
                    None if one.result is None else Result(**one.result),
                )
                for one in tries.get(step.step, ())
            ),
        )
        for step in steps
    ]
    results = {
        plan.steps[place].name: [
            one.result for one in standings[place].tries if one.result is not None
        ]
        for place, step in enumerate(steps)
        if step.state == "COMPLETED"
    }
    return StoredPipeline(row, plan, steps, standings, results)


async def insert(
    change: Change, hashes: Sequence[str | None], flow_run_id: UUID | None = None, **values: Any
) -> int:
    """A new pipeline, which begins; its id. ``hashes``: of each step's code. ``flow_run_id``: of its flow, if
    that runs already."""
    conn = change.conn
    made = await conn.execute(
        sa.insert(pipelines).values(state=RUNNING, changes=1, **values).returning(p.id)
    )
    pipeline_id = int(made.scalar_one())
    await conn.execute(
        sa.insert(pipeline_steps),
        [
            {"pipeline_id": pipeline_id, "step": place, "state": WAITING, "model_def_hash": code}
            for place, code in enumerate(hashes)
        ],
    )
    if flow_run_id is None:
        await run_records.want(change, run_records.PIPELINE, pipeline_id)
    else:
        await run_records.taken(conn, run_records.PIPELINE, pipeline_id, flow_run_id)
    change.notify(topics.pipeline(pipeline_id))
    return pipeline_id


async def set_step(
    change: Change, pipeline_id: int, step: int, state: str, reason: str | None = None, **more: Any
) -> None:
    values: dict[str, Any] = {"state": state, "reason": reason, **more}
    values["ended_at"] = sa.func.clock_timestamp() if state in ENDED else None
    await change.conn.execute(
        sa.update(pipeline_steps).where(s.pipeline_id == pipeline_id, s.step == step).values(values)
    )


async def set_try(
    change: Change, pipeline_id: int, step: int, one: Try, state: str, **values: Any
) -> None:
    await change.conn.execute(
        sa.update(pipeline_experiments)
        .where(
            x.pipeline_id == pipeline_id,
            x.step == step,
            x.item == one.item,
            x.attempt == one.attempt,
        )
        .values(state=state, **values)
    )


async def add_try(change: Change, pipeline_id: int, step: int, item: int, attempt: int) -> None:
    await change.conn.execute(
        sa.insert(pipeline_experiments).values(
            pipeline_id=pipeline_id, step=step, item=item, attempt=attempt, state="WAITING"
        )
    )
