"""The job queue: every experiment that waits for slots or holds some, and every command, notebook and the
like, as ``v1Job``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.queue import QueueView
from determined_service.scheduling.snapshot import Occupant, Request
from determined_service.views.values import moment

QUEUED = "STATE_QUEUED"
SCHEDULED = "STATE_SCHEDULED"
BACKFILLED = "STATE_SCHEDULED_BACKFILLED"

_IN_QUEUE = sa.text(
    """
    SELECT id, resource_pool, coalesce(queue_position, extract(epoch FROM start_time)::float8) AS place
    FROM experiments
    WHERE NOT unmanaged AND (state = 'ACTIVE' OR id = ANY(:live))
    """
)
_DETAILS = sa.text(
    """
    SELECT e.id, e.name, e.job_id, e.progress, e.start_time, e.owner_id, u.username,
           (e.config #>> '{resources,priority}')::int AS priority,
           coalesce((e.config #>> '{resources,weight}')::float8, 1) AS weight, p.workspace_id
    FROM experiments e JOIN users u ON u.id = e.owner_id JOIN projects p ON p.id = e.project_id
    WHERE e.id = ANY(:ids)
    """
)

# A trial's task has no job: its experiment has.
_TASKS_IN_QUEUE = sa.text(
    """
    SELECT k.id, a.id AS allocation_id, a.resource_pool,
           extract(epoch FROM coalesce(a.in_line_since, a.requested_at))::float8 AS place
    FROM allocations a JOIN tasks k ON k.id = a.task_id
    WHERE a.id = ANY(:live) AND k.job_id IS NOT NULL
    """
)
_TASK_DETAILS = sa.text(
    """
    SELECT k.id, k.name, k.kind, k.job_id, 0 AS progress, k.start_time, k.owner_id, u.username,
           (k.config #>> '{resources,priority}')::int AS priority,
           coalesce((k.config #>> '{resources,weight}')::float8, 1) AS weight,
           coalesce(k.workspace_id, 1) AS workspace_id
    FROM tasks k JOIN users u ON u.id = k.owner_id
    WHERE k.id = ANY(:ids) AND k.job_id IS NOT NULL
    """
)


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """An experiment (``id``: its number) or a task (its id) in the queue.

    ``ahead``: how many jobs of its pool come before it, while it waits. ``held``, ``wanted``: slots.
    """

    id: int | str
    pool: str
    state: str
    ahead: int
    held: int
    wanted: int
    order: tuple[Any, ...] = ()


def _waiting(seen: QueueView) -> Iterator[Request]:
    yield from seen.snapshot.requests
    yield from (one.request for one in seen.snapshot.resting)


async def list_jobs(conn: AsyncConnection, seen: QueueView) -> list[QueuedJob]:
    """Every job, by pool: those that hold slots, the more important first, then those that wait in the order
    in which they are served."""
    held: Counter[int] = Counter()
    wanted: Counter[int] = Counter()
    first: dict[int, Request | Occupant] = {}
    running: dict[int, list[str]] = {}
    for live in seen.snapshot.running:
        if live.group is not None:
            held[live.group] += live.width
            first.setdefault(live.group, live)
            running.setdefault(live.group, []).append(live.id)
    for request in _waiting(seen):
        if request.group is not None:
            wanted[request.group] += request.slots
            first.setdefault(request.group, request)
    found = []
    for row in await conn.execute(_IN_QUEUE, {"live": list(first)}):
        state, ahead = QUEUED, seen.ahead.get(row.id, 0)
        if row.id in running:
            behind = all(one in seen.decision.backfilled for one in running[row.id])
            state, ahead = (BACKFILLED if behind else SCHEDULED), 0
        priority = first[row.id].priority if row.id in first else 0
        # What waits for nothing but its searcher comes last.
        last = row.id not in first
        order = (row.resource_pool, state == QUEUED, last, ahead, priority, row.place, 0, row.id)
        found.append(
            QueuedJob(row.id, row.resource_pool, state, ahead, held[row.id], wanted[row.id], order)
        )
    found += await _tasks(conn, seen)
    return sorted(found, key=lambda job: job.order)


async def _tasks(conn: AsyncConnection, seen: QueueView) -> list[QueuedJob]:
    live: dict[str, Request | Occupant] = {
        one.id: one for one in seen.snapshot.running if one.group is None
    }
    live |= {one.id: one for one in _waiting(seen) if one.group is None}
    if not live:
        return []
    found = []
    for row in await conn.execute(_TASKS_IN_QUEUE, {"live": list(live)}):
        one = live[row.allocation_id]
        state, ahead, held, wanted = QUEUED, 0, 0, 0
        if isinstance(one, Occupant):
            behind = one.id in seen.decision.backfilled
            state, held = (BACKFILLED if behind else SCHEDULED), one.width
        else:
            ahead, wanted = seen.ahead.get(one.id, 0), one.slots
        pool = row.resource_pool
        order = (pool, state == QUEUED, False, ahead, one.priority, row.place, 1, row.id)
        found.append(QueuedJob(row.id, pool, state, ahead, held, wanted, order))
    return found


def count_by_pool(jobs: Collection[QueuedJob]) -> dict[str, dict[str, int]]:
    """``v1QueueStats`` of each pool that has jobs."""
    found: dict[str, dict[str, int]] = {}
    for job in jobs:
        mine = found.setdefault(job.pool, {"queuedCount": 0, "scheduledCount": 0})
        mine["queuedCount" if job.state == QUEUED else "scheduledCount"] += 1
    return found


async def jobs_json(
    conn: AsyncConnection, jobs: Sequence[QueuedJob], schedulers: PoolSchedulers
) -> list[dict[str, Any]]:
    """``v1Job`` of each; one that was deleted meanwhile is left out."""
    numbers = [job.id for job in jobs if isinstance(job.id, int)]
    names = [job.id for job in jobs if isinstance(job.id, str)]
    details: dict[int | str, sa.Row[Any]] = {}
    for statement, ids in ((_DETAILS, numbers), (_TASK_DETAILS, names)):
        if ids:
            details |= {row.id: row for row in await conn.execute(statement, {"ids": ids})}
    return [_json(job, details[job.id], schedulers) for job in jobs if job.id in details]


def _json(job: QueuedJob, row: sa.Row[Any], schedulers: PoolSchedulers) -> dict[str, Any]:
    is_task = isinstance(job.id, str)
    summary: Mapping[str, Any] = {"state": job.state, "jobsAhead": job.ahead}
    return {
        "jobId": str(row.job_id),
        "type": f"TYPE_{row.kind}" if is_task else "TYPE_EXPERIMENT",
        "entityId": str(job.id),
        "name": row.name,
        "resourcePool": job.pool,
        "submissionTime": moment(row.start_time),
        "username": row.username,
        "userId": row.owner_id,
        "workspaceId": row.workspace_id,
        "isPreemptible": not is_task,
        "priority": row.priority or schedulers.default_priority(job.pool),
        "higherPriorityFirst": schedulers.is_higher_first(job.pool),
        "weight": row.weight,
        "progress": row.progress,
        "requestedSlots": job.held + job.wanted,
        "allocatedSlots": job.held,
        "summary": summary,
    }
