"""The experiments, models and pipelines around an experiment, and the slots that it has used."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import (
    checkpoints,
    experiments,
    model_versions,
    models,
    pipeline_experiments,
    pipelines,
    retraining_runs,
    retrainings,
)
from determined_service.deleting.kept_usage import HAD_ROOM
from determined_service.views.values import state

MOST = 100
"""Entries of each list, the newest."""

e, v, x = experiments.c, model_versions.c, pipeline_experiments.c
_experiment: sa.BindParameter[int] = sa.bindparam("id")
_PARENT = (
    sa.select(e.id, e.name, e.state)
    .where(e.id == sa.select(e.parent_id).where(e.id == _experiment).scalar_subquery())
    .order_by(e.id)
)
_FORKS = (
    sa.select(e.id, e.name, e.state)
    .where(e.parent_id == _experiment)
    .order_by(e.id.desc())
    .limit(MOST)
)
_VERSIONS = (
    sa.select(models.c.name, v.version, v.checkpoint_uuid)
    .join(models, models.c.id == v.model_id)
    .join(checkpoints, checkpoints.c.uuid == v.checkpoint_uuid)
    .where(checkpoints.c.experiment_id == _experiment)
    .order_by(v.created_at.desc())
    .limit(MOST)
)
_PIPELINES = (
    sa.select(pipelines.c.id, pipelines.c.name, models.c.name.label("model"))
    .distinct()
    .select_from(pipeline_experiments)
    .join(pipelines, pipelines.c.id == x.pipeline_id)
    .outerjoin(retraining_runs, retraining_runs.c.id == pipelines.c.retraining_run_id)
    .outerjoin(retrainings, retrainings.c.id == retraining_runs.c.retraining_id)
    .outerjoin(models, models.c.id == retrainings.c.model_id)
    .where(x.experiment_id == _experiment)
    .order_by(pipelines.c.id.desc())
    .limit(MOST)
)
_SLOT_SECONDS = sa.text(
    f"""
    SELECT coalesce(sum(a.slots * extract(epoch FROM coalesce(a.ended_at, now()) - a.assigned_at)), 0)::float8
    FROM trials t JOIN allocations a ON a.trial_id = t.id
    WHERE t.experiment_id = :id AND a.assigned_at IS NOT NULL AND {HAD_ROOM}
    """
)


async def lineage(conn: AsyncConnection, experiment_id: int) -> dict[str, Any]:
    """``parent``, ``forks``, ``modelVersions``, ``pipelines``, ``retrainings`` (models whose retraining it
    is part of), ``slotSeconds``; of what the connection shows."""
    given = {"id": experiment_id}
    parents = [_named(row) for row in await conn.execute(_PARENT, given)]
    forks = [_named(row) for row in await conn.execute(_FORKS, given)]
    versions = (await conn.execute(_VERSIONS, given)).all()
    found = (await conn.execute(_PIPELINES, given)).all()
    return {
        "parent": parents[0] if parents else None,
        "forks": forks,
        "modelVersions": [
            {"modelName": row.name, "version": row.version, "checkpoint": str(row.checkpoint_uuid)}
            for row in versions
        ],
        # The pipeline of a retraining is shown as that.
        "pipelines": [{"id": row.id, "name": row.name} for row in found if row.model is None],
        "retrainings": sorted({row.model for row in found if row.model is not None}),
        "slotSeconds": await conn.scalar(_SLOT_SECONDS, given),
    }


def _named(row: sa.Row[Any]) -> dict[str, Any]:
    return {"id": row.id, "name": row.name, "state": state(row.state)}
