"""The tasks of a trial: the present one, and those from before its experiment was continued.

The run in Prefect, its undelivered messages and the experiments that its processes submitted belong to the
trial: the newest task takes them over. Allocations, legs, log lines and checkpoints stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import tasks, trials
from determined_service.state.change import Change
from determined_service.state.prefect_states import TASK_ENTITY

TRIAL_TASKS: Final = (
    sa.select(trials.c.id.label("trial_id"), trials.c.task_id)
    .union_all(sa.select(tasks.c.former_of, tasks.c.id))
    .subquery("trial_tasks")
)
"""``(trial_id, task_id)`` of every task of every trial; beside them rows whose ``trial_id`` is NULL.

As plain as it is, Postgres looks both up by an index."""

FORMER: Final = (
    sa.select(sa.func.array_agg(tasks.c.id))
    .where(tasks.c.former_of == trials.c.id)
    .correlate(trials)
    .scalar_subquery()
)
"""Of a trial in a query: the ids of its former tasks, in no order; NULL: it has none."""

STARTED: Final = sa.func.least(
    tasks.c.start_time,
    sa.select(sa.func.min(tasks.c.start_time))
    .where(tasks.c.former_of == trials.c.id)
    .correlate(trials)
    .scalar_subquery(),
)
"""Of a trial in a query that joins its task: when the first one began."""


def of_experiment(experiment_id: str) -> str:
    """SQL for the ids of every task of the experiment's trials. ``experiment_id``: its id, in SQL."""
    return f"""
        SELECT task_id FROM trials WHERE experiment_id = {experiment_id}
        UNION ALL
        SELECT former.id FROM trials JOIN tasks former ON former.former_of = trials.id
        WHERE trials.experiment_id = {experiment_id}
    """


def in_order(task_id: str, former: Sequence[str] | None) -> list[str]:
    """All tasks of a trial, the first one first. ``task_id`` is the newest."""
    # "…", "…-1", … "…-9", "…-10": the longer, the later.
    return [*sorted(former or (), key=lambda one: (len(one), one)), task_id]


async def task_ids(conn: AsyncConnection, trial_id: int) -> list[str]:
    """All tasks of the trial, the first one first; none: there is no such trial."""
    found = await conn.execute(
        sa.select(trials.c.task_id, FORMER.label("former")).where(trials.c.id == trial_id)
    )
    row = found.first()
    return [] if row is None else in_order(row.task_id, row.former)


_RENEW = sa.text(
    f"""
    WITH old AS MATERIALIZED (
        SELECT t.id, t.task_id, t.known -> 'task' AS was,
               t.experiment_id || '.' || t.request_id || '-' ||
                   (SELECT count(*) + 1 FROM tasks f WHERE f.former_of = t.id) AS new_id
        FROM trials t WHERE t.id = ANY(:ids)
    ), made AS (
        INSERT INTO tasks (id, kind, owner_id, flow_run_id)
        SELECT o.new_id, k.kind, k.owner_id, k.flow_run_id
        FROM old o JOIN tasks k ON k.id = o.task_id
    ), former AS (
        UPDATE tasks k
        SET former_of = o.id, state = o.was ->> 'state', reason = o.was ->> 'reason',
            end_time = cast(o.was ->> 'end_time' AS timestamptz)
        FROM old o WHERE k.id = o.task_id
    ), untold AS (
        -- It may be on its way at this moment: a repeated delivery looks first.
        UPDATE prefect_outbox p
        SET entity = '{TASK_ENTITY}' || o.new_id, attempts = p.attempts + 1
        FROM old o WHERE p.entity = '{TASK_ENTITY}' || o.task_id
    ), submitted AS (
        UPDATE experiments e SET submitted_by = o.new_id FROM old o WHERE e.submitted_by = o.task_id
    )
    UPDATE trials t SET task_id = o.new_id FROM old o WHERE t.id = o.id
    RETURNING t.id, t.task_id
    """
)


async def renew(change: Change, rows: Sequence[sa.Row[Any]]) -> dict[int, str]:
    """Gives another task to those of the locked trials (``rows`` of ``trials``, about to run) that have not
    run since their experiment was continued. Returns the newest task of each trial, by the trial's id.
    """
    found = {row.id: row.task_id for row in rows}
    ids = [row.id for row in rows if _had_this_task(row)]
    if ids:
        found |= {row.id: row.task_id for row in await change.conn.execute(_RENEW, {"ids": ids})}
    return found


def _had_this_task(row: sa.Row[Any]) -> bool:
    """True if the trial still has the task that it had when its experiment was continued."""
    return row.known is not None and (row.known.get("task") or {}).get("id") == row.task_id
