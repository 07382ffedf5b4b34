"""Erases the rest of a deleted experiment: its runs in Prefect, and its rows; and ended tasks."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.base import topics
from determined_service.deleting import kept_usage
from determined_service.state.change import Change
from determined_service.state.prefect_states import EXPERIMENT_ENTITY, TASK_ENTITY
from determined_service.state.trial_tasks import of_experiment

_TASKS = f"{of_experiment(':id')} UNION ALL SELECT task_id FROM deletions WHERE experiment_id = :id"
_RUNS = sa.text(
    f"""
    SELECT flow_run_id FROM tasks WHERE flow_run_id IS NOT NULL AND id IN ({_TASKS})
    UNION SELECT unnest(array_append(r.earlier_flow_run_ids, r.flow_run_id))
          FROM kept_runs r LEFT JOIN deletions d ON d.id = r.deletion_id
          WHERE r.experiment_id = :id OR d.experiment_id = :id
    """
)
# In this order; rows that refer to the tasks, the experiment, or its trials, are deleted with them.
_ROWS = (
    f"DELETE FROM task_logs WHERE task_id IN ({_TASKS})",
    f"""
    DELETE FROM prefect_outbox WHERE entity = '{EXPERIMENT_ENTITY}' || :id OR entity IN (
        SELECT '{TASK_ENTITY}' || task_id FROM trials WHERE experiment_id = :id)
    """,
    f"DELETE FROM tasks WHERE id IN ({_TASKS})",
    """
    WITH gone AS (DELETE FROM experiments WHERE id = :id RETURNING model_def_hash)
    DELETE FROM model_definitions m USING gone
    WHERE m.hash = gone.model_def_hash AND NOT EXISTS (
        SELECT FROM experiments e WHERE e.model_def_hash = m.hash AND e.id <> :id)
      AND NOT EXISTS (SELECT FROM retrainings r WHERE r.model_def_hash = m.hash)
      AND NOT EXISTS (SELECT FROM pipeline_steps s WHERE s.model_def_hash = m.hash)
      AND NOT EXISTS (SELECT FROM tasks k WHERE k.model_def_hash = m.hash)
    """,
)


_TASK_ROWS = (
    "DELETE FROM task_logs WHERE task_id = ANY(:ids)",
    f"""
    DELETE FROM prefect_outbox
    WHERE entity IN (SELECT '{TASK_ENTITY}' || id FROM unnest(cast(:ids AS text[])) AS id)
    """,
    """
    WITH gone AS (DELETE FROM tasks WHERE id = ANY(:ids) RETURNING model_def_hash)
    DELETE FROM model_definitions m USING gone
    WHERE m.hash = gone.model_def_hash
      AND NOT EXISTS (SELECT FROM experiments e WHERE e.model_def_hash = m.hash)
      AND NOT EXISTS (SELECT FROM retrainings r WHERE r.model_def_hash = m.hash)
      AND NOT EXISTS (SELECT FROM pipeline_steps s WHERE s.model_def_hash = m.hash)
      AND NOT EXISTS (
        SELECT FROM tasks k WHERE k.model_def_hash = m.hash AND k.id <> ALL(:ids))
    """,
)


async def erase_tasks(change: Change, ids: Sequence[str]) -> None:
    """Deletes every row of these launched tasks, which have ended and left no files; their usage is kept."""
    await kept_usage.keep_tasks(change.conn, ids)
    for statement in _TASK_ROWS:
        await change.conn.execute(sa.text(statement), {"ids": list(ids)})


async def runs_of(conn: AsyncConnection, experiment_id: int) -> list[UUID]:
    """The experiment's runs in Prefect: its own, its trials', and the runs that deleted its files."""
    found = (await conn.execute(_RUNS, {"id": experiment_id})).scalars()
    return [one for one in found if one is not None]


async def erase(change: Change, experiment_id: int) -> None:
    """Deletes every row of the experiment; there may be none. Its files and runs are gone.

    Its usage is kept for accounting.
    """
    await change.conn.execute(
        sa.text("SELECT FROM experiments WHERE id = :id FOR UPDATE"), {"id": experiment_id}
    )
    await kept_usage.keep(change.conn, experiment_id)
    for statement in _ROWS:
        parameters = sa.bindparam("id", type_=sa.Integer)
        await change.conn.execute(sa.text(statement).bindparams(parameters), {"id": experiment_id})
    change.notify(topics.experiment(experiment_id))
