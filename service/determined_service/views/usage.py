"""Lists who used which slots, and when: :func:`page` of allocations, and :func:`sums` by day or month.

An allocation uses its slots from the moment when it is given them to its end; one that still runs, until now;
one for which its agent's cluster had no room, not at all.
Of deleted experiments the same facts are kept (``erased_usage``). Times are UTC.
"""

from __future__ import annotations

import datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.deleting.kept_usage import AGENTS, HAD_ROOM

Unit = Literal["day", "month"]

PAGE = 1000
PATIENCE_S = 60
"""Seconds that one look-up may take."""

# What overlaps with the time from :after to :before.
_USED = f"""
    SELECT a.id, k.kind, k.owner_id AS user_id, a.experiment_id, coalesce(e.labels, '[]') AS labels,
           a.resource_pool, a.slots, {AGENTS} AS agents, a.assigned_at AS began, a.ended_at AS ended,
           coalesce((SELECT p.workspace_id FROM projects p WHERE p.id = e.project_id), k.workspace_id)
               AS workspace_id
    FROM allocations a JOIN tasks k ON k.id = a.task_id LEFT JOIN experiments e ON e.id = a.experiment_id
    WHERE a.assigned_at < :before AND coalesce(a.ended_at, now()) > :after
      AND (a.assigned_at, a.id) > (:last_began, :last_id) AND {HAD_ROOM}
    UNION ALL
    SELECT allocation_id, kind, user_id, experiment_id, labels, resource_pool, slots, agents, began, ended,
           NULL
    FROM erased_usage
    WHERE began < :before AND ended > :after AND (began, allocation_id) > (:last_began, :last_id)
"""
_PAGE = sa.text(
    f"""
    SELECT used.*, u.username, w.name AS workspace_name,
           extract(epoch FROM least(coalesce(ended, now()), :before) - greatest(began, :after))::float8
               AS seconds
    FROM ({_USED} ORDER BY began, id LIMIT :most) AS used JOIN users u ON u.id = used.user_id
         LEFT JOIN workspaces w ON w.id = used.workspace_id
    ORDER BY began, id
    """
)
# An allocation is cut at midnight, or at the first of a month, into its parts.
_SUMS = sa.text(
    f"""
    WITH parts AS MATERIALIZED (
        SELECT used.*, u.username, cast(period AS date) AS period,
               extract(epoch FROM
                   least(coalesce(ended, now()), :before, (period + step) AT TIME ZONE 'UTC')
                   - greatest(began, :after, period AT TIME ZONE 'UTC'))::float8 AS seconds
        FROM ({_USED}) AS used JOIN users u ON u.id = used.user_id,
             make_interval(days => :days, months => :months) AS step,
             generate_series(
                 date_trunc(:unit, greatest(began, :after) AT TIME ZONE 'UTC'),
                 least(coalesce(ended, now()), :before) AT TIME ZONE 'UTC' - interval '1 microsecond',
                 step) AS period
        WHERE slots > 0
    )
    SELECT period, 'total' AS type, 'total' AS key, sum(slots * seconds) AS seconds
    FROM parts GROUP BY period
    UNION ALL
    SELECT period, 'username', username, sum(slots * seconds) FROM parts GROUP BY period, username
    UNION ALL
    SELECT period, 'experiment_label', label, sum(slots * seconds)
    FROM parts, jsonb_array_elements_text(labels) AS label GROUP BY period, label
    UNION ALL
    SELECT period, 'resource_pool', resource_pool, sum(slots * seconds)
    FROM parts GROUP BY period, resource_pool
    UNION ALL
    SELECT period, 'agent', agent.key, sum(cast(agent.value AS int) * seconds)
    FROM parts, jsonb_each_text(agents) AS agent GROUP BY period, agent.key
    ORDER BY period, type, key
    """
)
_PATIENCE = sa.text("SELECT set_config('statement_timeout', :ms, true)")
_BEGINNING = (datetime.datetime(1, 1, 1, tzinfo=datetime.UTC), "")


async def page(
    conn: AsyncConnection,
    after: datetime.datetime,
    before: datetime.datetime,
    last: sa.Row[Any] | None = None,
) -> list[sa.Row[Any]]:
    """The next :data:`PAGE` allocations, by their begin, that used slots between the two times.

    ``last``: the last row of the page before. Columns: ``id``, ``kind``, ``user_id``, ``username``,
    ``experiment_id`` (None: no trial's), ``labels``, ``resource_pool``, ``slots``, ``agents`` (slots by
    agent), ``began``, ``ended`` (None: it runs), ``workspace_name`` (now; None: what
    it was for has been deleted), ``seconds`` (within the two times).
    """
    await conn.execute(_PATIENCE, {"ms": str(PATIENCE_S * 1000)})
    began, key = _BEGINNING if last is None else (last.began, last.id)
    values = {"after": after, "before": before, "last_began": began, "last_id": key, "most": PAGE}
    return list(await conn.execute(_PAGE, values))


async def sums(
    conn: AsyncConnection, first: datetime.date, end: datetime.date, unit: Unit
) -> list[sa.Row[Any]]:
    """The seconds of slots by day or month, from ``first`` until before ``end``, UTC.

    Columns: ``period`` (its first day), ``type`` (``total``, ``username``, ``experiment_label``,
    ``resource_pool``, ``agent``), ``key``, ``seconds``. An experiment with two labels
    counts in full for both.
    """
    await conn.execute(_PATIENCE, {"ms": str(PATIENCE_S * 1000)})
    after, before = (
        datetime.datetime.combine(day, datetime.time(), datetime.UTC) for day in (first, end)
    )
    began, key = _BEGINNING
    values = {"after": after, "before": before, "last_began": began, "last_id": key}
    step = {"unit": unit, "days": int(unit == "day"), "months": int(unit == "month")}
    return list(await conn.execute(_SUMS, values | step))
