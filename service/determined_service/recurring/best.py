"""The best checkpoint of an experiment, by the metric of its searcher."""

from __future__ import annotations

from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import experiments, trials
from determined_service.views.checkpoints import best_checkpoints


async def best_checkpoint(conn: AsyncConnection, trial_ids: list[int]) -> UUID | None:
    """Of those trials; None: there is none with the metric."""
    of_trials = await best_checkpoints(conn, trial_ids)
    if not of_trials:
        return None
    searcher = experiments.c.config["searcher"]["smaller_is_better"].astext
    found = await conn.execute(
        sa.select(trials.c.id)
        .join(experiments, experiments.c.id == trials.c.experiment_id)
        .where(trials.c.id.in_(of_trials), trials.c.searcher_metric_value.is_not(None))
        .order_by(
            trials.c.searcher_metric_value * sa.case((searcher == "false", -1), else_=1),
            trials.c.id,
        )
        .limit(1)
    )
    chosen = found.scalar_one_or_none()
    return UUID(of_trials[chosen if chosen is not None else min(of_trials)]["uuid"])
