"""What a completed experiment has found: :func:`result_of`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.pipeline import Result
from determined_registry.database.tables import experiments, metrics, trials
from determined_service.base.errors import Conflict
from determined_service.recurring.best import best_checkpoint
from determined_service.search.warm_start import complete_checkpoints
from determined_service.views.checkpoints import best_checkpoints

METRIC_CHARS = 1_000
"""Longer metrics that are texts are not kept."""


async def result_of(conn: AsyncConnection, experiment_id: int, item: Any) -> Result:
    """The experiment's best trial, by the searcher's metric; without any metric, its first."""
    searcher = experiments.c.config["searcher"]
    is_smaller = sa.func.coalesce(searcher["smaller_is_better"].astext, "true") != "false"
    loss = trials.c.searcher_metric_value * sa.case((is_smaller, 1), else_=-1)
    # Postgres sorts NaN behind all numbers, and before NULL.
    found = await conn.execute(
        sa.select(
            trials.c.id,
            trials.c.hparams,
            trials.c.searcher_metric_value,
            is_smaller.label("smaller"),
            metrics.c.metrics,
        )
        .join(experiments, experiments.c.id == trials.c.experiment_id)
        .outerjoin(metrics, metrics.c.id == trials.c.best_validation_id)
        .where(trials.c.experiment_id == experiment_id)
        .order_by(loss.asc().nulls_last(), trials.c.id)
        .limit(1)
    )
    best = found.first()
    if best is None:
        return Result(experiment_id, item=item)
    value = best.searcher_metric_value
    return Result(
        experiment_id,
        best.id,
        await usable_checkpoint(conn, best.id),
        dict(best.hparams or {}),
        {name: one for name, one in (best.metrics or {}).items() if _is_kept(one)},
        value if value is not None and math.isfinite(value) else None,
        best.smaller,
        item,
    )


async def with_checkpoint(conn: AsyncConnection, found: Result) -> Result:
    """``found``, with the best checkpoint of another trial where the best trial has none. Raises Conflict."""
    if found.checkpoint is not None:
        return found
    of = sa.select(trials.c.id).where(trials.c.experiment_id == found.experiment)
    best = await best_checkpoint(conn, list((await conn.execute(of)).scalars()))
    if best is None:
        raise Conflict(
            f"experiment {found.experiment} has no checkpoint with the searcher's metric: its code must save "
            "one at the step of a validation, and its checkpoint policy must keep it"
        )
    return replace(found, checkpoint=str(best))


def _is_kept(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= METRIC_CHARS
    return isinstance(value, int | float)


async def usable_checkpoint(conn: AsyncConnection, trial_id: int) -> str | None:
    """The trial's best checkpoint, unless it is being deleted."""
    checkpoint = (await best_checkpoints(conn, [trial_id])).get(trial_id)
    if checkpoint is None or not await complete_checkpoints(conn, {UUID(checkpoint["uuid"])}):
        return None
    return str(checkpoint["uuid"])
