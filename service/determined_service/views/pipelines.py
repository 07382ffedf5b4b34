"""Pipelines: queries and JSON. Configurations, which may hold secrets, are shown to nobody."""

from __future__ import annotations

from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.pipeline import PipelinePlan
from determined_registry.database.tables import (
    kept_runs,
    pipeline_experiments,
    pipeline_steps,
    pipelines,
    users,
    workspaces,
)
from determined_service.views.lists import weight
from determined_service.views.secrets import Viewer
from determined_service.views.values import moment

p = pipelines.c
s = pipeline_steps.c
x = pipeline_experiments.c


WEIGHT = weight(p.name, p.reason, p.cause, p.events)


def select_pipelines() -> sa.Select[Any]:
    """Every column that :func:`pipeline_json` reads. Runs of retrainings are not among them."""
    of = sa.select(sa.func.count()).where(s.pipeline_id == p.id)
    return (
        sa.select(
            *(column for column in p if column.name != "plan"),
            kept_runs.c.flow_run_id,
            users.c.username,
            workspaces.c.name.label("workspace_name"),
            of.scalar_subquery().label("steps"),
            of.where(s.state == "COMPLETED").scalar_subquery().label("completed"),
        )
        .join(users, users.c.id == p.owner_id)
        .join(workspaces, workspaces.c.id == p.workspace_id)
        .outerjoin(kept_runs, kept_runs.c.pipeline_id == p.id)
        .where(p.retraining_run_id.is_(None))
    )


def pipeline_json(row: sa.Row[Any]) -> dict[str, Any]:
    """A pipeline in a list."""
    return {
        "id": row.id,
        "name": row.name,
        "username": row.username,
        "userId": row.owner_id,
        "workspaceId": row.workspace_id,
        "workspaceName": row.workspace_name,
        "projectId": row.project_id or 0,
        "state": row.state,
        "reason": row.reason,
        "stepCount": row.steps,
        "completedSteps": row.completed,
        "flowRunId": row.flow_run_id and str(row.flow_run_id),
        "againOf": row.again_of,
        "cause": row.cause,
        "schedule": row.schedule,
        "events": row.events or [],
        "nextTime": moment(row.next_at),
        "startTime": moment(row.started_at),
        "endTime": moment(row.ended_at),
    }


async def find_pipeline(
    conn: AsyncConnection, pipeline_id: int, viewer: Viewer | None
) -> dict[str, Any] | None:
    """One pipeline with its steps and every try of their experiments; None: there is none.

    Items that may hold a secret are shown to the owner and administrators; ``viewer`` None: to nobody.
    """
    row = (await conn.execute(select_pipelines().where(p.id == pipeline_id))).first()
    if row is None:
        return None
    sees_all = viewer is not None and viewer.owns(row.owner_id)
    text = await conn.execute(sa.select(p.plan).where(p.id == pipeline_id))
    plan = PipelinePlan.from_json(orjson.loads(text.scalar_one()))
    steps = list(
        await conn.execute(
            sa.select(pipeline_steps).where(s.pipeline_id == pipeline_id).order_by(s.step)
        )
    )
    tries: dict[int, list[sa.Row[Any]]] = {}
    listed = (
        sa.select(pipeline_experiments)
        .where(x.pipeline_id == pipeline_id)
        .order_by(x.step, x.item, x.attempt)
    )
    for one in await conn.execute(listed):
        tries.setdefault(one.step, []).append(one)
    found = []
    for step, asked in zip(steps, plan.steps, strict=True):
        items = step.items if sees_all or asked.items_are_public else None
        mine = tries.get(step.step, [])
        if not asked.is_experiment:  # the others have an experiment or a task, or none
            mine = [one for one in mine if one.experiment_id or one.task_id]
        last = {one.item: one.attempt for one in mine}
        experiments = [_experiment(one, items) for one in mine if last[one.item] == one.attempt]
        earlier = [_experiment(one, items) for one in mine if last[one.item] != one.attempt]
        found.append(
            {
                "name": asked.name,
                "kind": asked.kind,
                "state": step.state,
                "reason": step.reason,
                "needs": list(asked.needs),
                "forEach": asked.for_each is not None,
                "cached": asked.cached,
                "startTime": moment(step.started_at),
                "endTime": moment(step.ended_at),
                "experiments": experiments,
                "earlierExperiments": earlier,
            }
        )
    return {**pipeline_json(row), "steps": found}


def _experiment(row: sa.Row[Any], items: list[Any] | None) -> dict[str, Any]:
    result = row.result
    return {
        "id": row.experiment_id,
        "taskId": row.task_id,
        "index": row.item,
        "item": None if items is None else items[row.item],
        "attempt": row.attempt,
        "state": row.state,
        "reason": row.reason,
        "cached": row.cached,
        "best": result
        and {
            "trialId": result["trial"],
            "checkpoint": result["checkpoint"],
            "metric": result["value"],
            "hparams": result["hparams"],
            "metrics": result["metrics"],
        },
    }
