"""Handles a leg that begins again before the point that its predecessor had reached.

After a crash a trial goes on from its latest checkpoint and reports some steps a second time. Then the
reports of earlier legs at and after the new leg's first step are archived: kept, but no longer part of the
trial's curve, its summaries or its best. A leg that goes on where the last leg ended archives nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.ingest.reports import VALIDATION, ReportBatch
from determined_service.ingest.values import PROFILER_GROUPS

_RECOMPUTE = sa.text(
    """
    INSERT INTO metric_summaries (
        trial_id, group_name, metric, type, count, finite_count, sum, min, max, last, last_steps
    )
    SELECT trial_id, group_name, metric,
           CASE WHEN count(DISTINCT type) = 1 THEN min(type) ELSE 'string' END,
           count(*), count(number), sum(number), min(number), max(number),
           (array_agg(value ORDER BY steps_completed DESC, id DESC))[1], max(steps_completed)
    FROM (
        SELECT m.id, m.trial_id, m.group_name, m.steps_completed, e.key AS metric, e.value,
               CASE
                   WHEN e.value IN ('"NaN"', '"Infinity"', '"-Infinity"') THEN 'number'
                   ELSE jsonb_typeof(e.value)
               END AS type,
               CASE WHEN jsonb_typeof(e.value) = 'number'
                   THEN (e.value #>> '{}')::float8 END AS number
        FROM metrics m, jsonb_each(m.metrics) AS e
        WHERE m.trial_id = :trial_id AND m.group_name = :group_name AND NOT m.archived
    ) AS one
    GROUP BY trial_id, group_name, metric
    """
)
_FORGET = sa.text(
    "DELETE FROM metric_summaries WHERE trial_id = :trial_id AND group_name = :group_name"
)


_ARCHIVE = sa.text(
    """
    UPDATE metrics AS m SET archived = true
    FROM unnest(
        cast(:trial_id AS int[]), cast(:run_id AS int[]),
        cast(:group_name AS text[]), cast(:first AS bigint[])
    ) AS g(trial_id, run_id, group_name, first)
    WHERE m.trial_id = g.trial_id AND m.group_name = g.group_name
      AND m.steps_completed >= g.first AND m.run_id < g.run_id AND NOT m.archived
    RETURNING m.trial_id, m.group_name
    """
)


async def archive(conn: AsyncConnection, batches: Sequence[ReportBatch]) -> list[tuple[int, str]]:
    """Archives what ``batches`` begin again; returns the (trial, group) pairs touched, sorted."""
    again = sorted(
        (batch.trial_id, batch.run_id, group, first)
        for batch in batches
        if batch.run_id > 1
        for group, first in batch.first_steps.items()
        if group not in PROFILER_GROUPS
    )
    if not again:
        return []
    trial_ids, run_ids, groups, firsts = map(list, zip(*again, strict=True))
    rows = await conn.execute(
        _ARCHIVE,
        {"trial_id": trial_ids, "run_id": run_ids, "group_name": groups, "first": firsts},
    )
    return sorted({(row.trial_id, row.group_name) for row in rows})


async def recompute(conn: AsyncConnection, touched: Iterable[tuple[int, str]]) -> None:
    """Makes the summaries of ``touched`` anew from the reports that are left."""
    for trial_id, group in touched:
        names = {"trial_id": trial_id, "group_name": group}
        await conn.execute(_FORGET, names)
        await conn.execute(_RECOMPUTE, names)


def validations_of(touched: Iterable[tuple[int, str]]) -> set[int]:
    """The trials whose validations are among ``touched``."""
    return {trial_id for trial_id, group in touched if group == VALIDATION}
