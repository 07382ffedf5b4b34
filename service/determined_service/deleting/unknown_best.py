"""Report trials whose best checkpoint is unknown (:mod:`determined_service.deleting.garbage`)."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import trials
from determined_service.ingest import logs

MOST_WARNED = 100
"""The number of an experiment's trials, the oldest, whose logs get the warning."""
LOOKED_AT = 200
"""The number of an experiment's trials, the newest, that its description checks."""
NAMED = 5

_NO_COMMON_STEP = sa.text(
    """
    SELECT t.id
    FROM (SELECT id, experiment_id FROM trials
          WHERE experiment_id = :id ORDER BY id DESC LIMIT :looked_at) t
    JOIN experiments e ON e.id = t.experiment_id
    WHERE EXISTS (SELECT FROM metric_summaries s
                  WHERE s.trial_id = t.id AND s.group_name = 'validation'
                    AND s.metric = e.config -> 'searcher' ->> 'metric')
      AND EXISTS (SELECT FROM checkpoints c WHERE c.trial_id = t.id AND c.state = 'COMPLETED')
      AND NOT EXISTS (
          SELECT FROM checkpoints c
          JOIN metrics m ON m.trial_id = c.trial_id AND m.group_name = 'validation'
               AND m.steps_completed = c.steps_completed AND NOT m.archived
          WHERE c.trial_id = t.id AND c.state IN ('COMPLETED', 'PARTIALLY_DELETED', 'DELETED'))
    ORDER BY t.id LIMIT :most
    """
)


async def no_common_step(conn: AsyncConnection, experiment_id: int) -> str | None:
    """In words, that trials of the experiment store no checkpoint at a step that they validate; else None."""
    given = {"id": experiment_id, "looked_at": LOOKED_AT, "most": NAMED + 1}
    ids = list((await conn.execute(_NO_COMMON_STEP, given)).scalars())
    if not ids:
        return None
    named = ", ".join(map(str, ids[:NAMED])) + (", …" if len(ids) > NAMED else "")
    return (
        f"trial{'s' if len(ids) > 1 else ''} {named}: no checkpoint is at a step that was validated, so "
        "nobody knows which is the best, and only the latest are kept; store a checkpoint at the step of a "
        "validation"
    )


async def warn(conn: AsyncConnection, unknown: Mapping[int, str]) -> None:
    """In the trials' logs, before anything is deleted: why, by trial, nobody knows its best checkpoint."""
    named = sorted(unknown)[:MOST_WARNED]
    rows = await conn.execute(
        sa.select(trials.c.id, trials.c.task_id)
        .where(trials.c.id.in_(named))
        .order_by(trials.c.task_id)
    )
    for row in list(rows):
        await logs.add_line(conn, row.task_id, None, unknown[row.id], "WARNING")
