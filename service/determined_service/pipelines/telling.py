"""Changes of a pipeline, told to those who follow it: its flow, its page, and the run of a retraining."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import pipelines
from determined_service.base import topics
from determined_service.pipelines import of_retraining
from determined_service.state import run_records
from determined_service.state.change import Change

p = pipelines.c


async def touch(change: Change, pipeline_id: int, **values: Any) -> None:
    """Something of the pipeline has changed, and all of that is written already."""
    changed = sa.update(pipelines).where(p.id == pipeline_id)
    found = await change.conn.execute(
        changed.values(changes=p.changes + 1, **values).returning(p.retraining_run_id)
    )
    change.notify(topics.pipeline(pipeline_id))
    if "state" in values:
        change.notify(topics.PIPELINES)
    if (run_id := found.scalar_one_or_none()) is not None:
        await of_retraining.follow(change, pipeline_id, run_id)


async def end(change: Change, pipeline_id: int, state: str, reason: str) -> None:
    """The pipeline has ended. ``reason``: for people."""
    await touch(change, pipeline_id, state=state, reason=reason, ended_at=sa.func.clock_timestamp())
    await run_records.ended(change, run_records.PIPELINE, pipeline_id)
