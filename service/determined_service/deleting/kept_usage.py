"""The slot time of the allocations of deleted experiments and tasks, which accounting still counts."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

# The agents of an allocation with its slots on each: {"agent": slots}.
AGENTS = """
    coalesce((SELECT jsonb_object_agg(n.agent_id, n.slots)
              FROM (SELECT r.agent_id, sum(jsonb_array_length(r.slot_ids)) AS slots
                    FROM allocation_resources r
                    WHERE r.allocation_id = a.id AND r.agent_id IS NOT NULL GROUP BY r.agent_id) AS n),
             CASE WHEN a.agent_id IS NULL THEN '{}'
                  ELSE jsonb_build_object(a.agent_id, a.slots) END)
"""
# Of an allocation that had its slots: the cluster of its agent had room for it.
HAD_ROOM = """
    NOT EXISTS (SELECT FROM legs f
                WHERE f.task_id = a.task_id AND f.run_id = a.run_id AND f.state = 'UNPLACED')
"""
_INSERT = f"""
    INSERT INTO erased_usage (allocation_id, kind, user_id, experiment_id, labels, resource_pool, slots,
                              agents, began, ended)
    SELECT a.id, k.kind, k.owner_id, a.experiment_id, coalesce(e.labels, '[]'), a.resource_pool, a.slots,
           {AGENTS}, a.assigned_at, coalesce(a.ended_at, now())
    FROM allocations a JOIN tasks k ON k.id = a.task_id LEFT JOIN experiments e ON e.id = a.experiment_id
    WHERE a.assigned_at IS NOT NULL AND {HAD_ROOM}
"""
_KEEP = sa.text(f"{_INSERT} AND a.experiment_id = :id ON CONFLICT DO NOTHING")
_KEEP_TASKS = sa.text(f"{_INSERT} AND a.task_id = ANY(:ids) ON CONFLICT DO NOTHING")


async def keep(conn: AsyncConnection, experiment_id: int) -> None:
    """Keep the usage of the experiment's allocations; its rows are about to be deleted. May be repeated."""
    await conn.execute(_KEEP, {"id": experiment_id})


async def keep_tasks(conn: AsyncConnection, ids: Sequence[str]) -> None:
    """As :func:`keep`, of tasks that are no trials'."""
    await conn.execute(_KEEP_TASKS, {"ids": list(ids)})
