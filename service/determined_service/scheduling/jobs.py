"""The job queue: every experiment that waits for slots or holds some, as ``v1Job``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.queue import Seen
from determined_service.scheduling.snapshot import Request, Running
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
           coalesce((e.config #>> '{resources,weight}')::float8, 1) AS weight
    FROM experiments e JOIN users u ON u.id = e.owner_id
    WHERE e.id = ANY(:ids)
    """
)


@dataclass(frozen=True, slots=True)
class Job:
    """An experiment in the queue. ``ahead``: how many jobs of its pool come before it, while it waits.
    ``held``, ``wanted``: slots."""

    id: int
    pool: str
    state: str
    ahead: int
    held: int
    wanted: int
    order: tuple[Any, ...] = ()


async def list_jobs(conn: AsyncConnection, seen: Seen) -> list[Job]:
    """Every job, by pool: those that hold slots, the more important first, then those that wait in the order
    in which they are served."""
    held: Counter[int] = Counter()
    wanted: Counter[int] = Counter()
    first: dict[int, Request | Running] = {}
    running: dict[int, list[str]] = {}
    for live in seen.snapshot.running:
        if live.group is not None:
            held[live.group] += live.width
            first.setdefault(live.group, live)
            running.setdefault(live.group, []).append(live.id)
    for request in seen.snapshot.requests:
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
        order = (row.resource_pool, state == QUEUED, last, ahead, priority, row.place, row.id)
        found.append(
            Job(row.id, row.resource_pool, state, ahead, held[row.id], wanted[row.id], order)
        )
    return sorted(found, key=lambda job: job.order)


def count_by_pool(jobs: Collection[Job]) -> dict[str, dict[str, int]]:
    """``v1QueueStats`` of each pool that has jobs."""
    found: dict[str, dict[str, int]] = {}
    for job in jobs:
        mine = found.setdefault(job.pool, {"queuedCount": 0, "scheduledCount": 0})
        mine["queuedCount" if job.state == QUEUED else "scheduledCount"] += 1
    return found


async def jobs_json(
    conn: AsyncConnection, jobs: Sequence[Job], schedulers: PoolSchedulers
) -> list[dict[str, Any]]:
    """``v1Job`` of each; one that was deleted meanwhile is left out."""
    rows = await conn.execute(_DETAILS, {"ids": [job.id for job in jobs]})
    details = {row.id: row for row in rows}
    return [_json(job, details[job.id], schedulers) for job in jobs if job.id in details]


def _json(job: Job, row: sa.Row[Any], schedulers: PoolSchedulers) -> dict[str, Any]:
    summary: Mapping[str, Any] = {"state": job.state, "jobsAhead": job.ahead}
    return {
        "jobId": str(row.job_id),
        "type": "TYPE_EXPERIMENT",
        "entityId": str(job.id),
        "name": row.name,
        "resourcePool": job.pool,
        "submissionTime": moment(row.start_time),
        "username": row.username,
        "userId": row.owner_id,
        "workspaceId": 1,
        "isPreemptible": True,
        "priority": row.priority or schedulers.default_priority(job.pool),
        "weight": row.weight,
        "progress": row.progress,
        "requestedSlots": job.held + job.wanted,
        "allocatedSlots": job.held,
        "summary": summary,
    }
