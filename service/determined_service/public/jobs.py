"""The job queue: who waits for slots, who holds some, and changes of both."""

# Parameters are named as in the API.
# ruff: noqa: N803
from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, Query
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import experiments, pools, tasks
from determined_service.access.dependencies import Admission, ExperimentReader, may_named
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import ManyNames, Name, Priority, Weight
from determined_service.base.db import Database, as_asker, seeing
from determined_service.base.errors import ApiError, BadRequest, NotFound
from determined_service.base.json import JsonResponse
from determined_service.lifecycle.pools import require_pool
from determined_service.scheduling import job_changes
from determined_service.scheduling.fallback import explain_fallback
from determined_service.scheduling.job_changes import set_task_priority
from determined_service.scheduling.job_explanation import explain_job, first_reasons
from determined_service.scheduling.jobs import count_by_pool, jobs_json, list_jobs
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.queue import Queue
from determined_service.state.change import changing, reader
from determined_service.views.paging import Limit, Offset, OrderBy, pagination, window
from determined_service.web.router import Router
from determined_service.web.state import Db, QueueOf, SnapshotsOf, WaitingTimesOf

router = Router("Jobs", "/api/v1")

MAX_UPDATES = 1000


@dataclass(frozen=True, slots=True)
class _QueueQuery:
    """The jobs that a request asks for."""

    pool: str
    states: list[str]
    descending: bool
    offset: int
    limit: int
    reasons: bool


async def _read_query(
    states: Annotated[ManyNames, Query(default_factory=list)],
    resourcePool: Name = "",
    orderBy: OrderBy = "ORDER_BY_ASC",
    offset: Offset = 0,
    limit: Limit = 0,
    reasons: Annotated[
        bool,
        Query(description="Ours: each job has `reason`, why its first request waits, in words."),
    ] = False,
) -> _QueueQuery:
    return _QueueQuery(resourcePool, states, orderBy == "ORDER_BY_DESC", offset, limit, reasons)


QueueQuery = Annotated[_QueueQuery, Depends(_read_query)]


async def _page(
    db: Database, queue: Queue, schedulers: PoolSchedulers, wanted: _QueueQuery
) -> dict[str, Any]:
    seen = await queue.look()
    async with reader(db).connect() as conn:
        found = await list_jobs(conn, seen)
        if wanted.pool:
            await require_pool(conn, wanted.pool, "resourcePool", None)
            found = [job for job in found if job.pool == wanted.pool]
        if wanted.states:
            found = [job for job in found if job.state in wanted.states]
        if wanted.descending:
            found.reverse()
        start, end = window(len(found), wanted.offset, wanted.limit)
        shown = found[start:end]
        jobs = await jobs_json(conn, shown, schedulers)
    if wanted.reasons:
        why = first_reasons(seen, {job.id for job in shown})
        words = {str(job): reason for job, reason in why.items()}
        jobs = [{**job, "reason": words.get(job["entityId"])} for job in jobs]
    return {"jobs": jobs, "pagination": pagination(len(found), wanted.offset, wanted.limit)}


@router.get("/job-queues-v2")
async def list_queue(
    user: ExperimentReader, db: Db, queue: QueueOf, snapshots: SnapshotsOf, wanted: QueueQuery
) -> JsonResponse:
    """Every job that waits for slots or holds some, pool by pool, in the order of service."""
    found = await _page(db, queue, snapshots.schedulers, wanted)
    return JsonResponse({**found, "jobs": [{"full": job} for job in found["jobs"]]})


@router.get("/job-queues")
async def list_queue_of_old(
    user: ExperimentReader, db: Db, queue: QueueOf, snapshots: SnapshotsOf, wanted: QueueQuery
) -> JsonResponse:
    """As `/job-queues-v2`, in the form of Determined's older clients."""
    return JsonResponse(await _page(db, queue, snapshots.schedulers, wanted))


@router.get("/job-queues/stats")
async def queue_stats(
    user: ExperimentReader,
    db: Db,
    queue: QueueOf,
    waiting_times: WaitingTimesOf,
    resourcePools: Annotated[ManyNames, Query(default_factory=list)],
) -> dict[str, Any]:
    """The number of jobs of each pool that wait, and that hold slots; and the waiting times, by day."""
    seen = await queue.look()
    waited = await waiting_times.look()
    # Everybody's jobs count, as they do for the places in the queue.
    with seeing(None):
        async with reader(db).connect() as conn:
            counted = count_by_pool(await list_jobs(conn, seen))
            named = sa.select(pools.c.name).where(~pools.c.removed).order_by(pools.c.name)
            names = list(await conn.scalars(named))
    nothing = {"queuedCount": 0, "scheduledCount": 0}
    return {
        "results": [
            {
                "resourcePool": name,
                "stats": counted.get(name, nothing),
                "aggregates": waited.get(name, []),
            }
            for name in names
            if not resourcePools or name in resourcePools
        ]
    }


@router.get("/job-queues/{job_id}/explanation")
async def explain(
    job_id: Name, user: ExperimentReader, db: Db, queue: QueueOf, snapshots: SnapshotsOf
) -> JsonResponse:
    """The reason in words why each request of a job waits, and what has to end before the first one starts.

    `fallback`: sentences on the pools to which it went or goes by itself.

    The job is named by its id, by the number of its experiment, or by its task's id.
    """
    seen = await queue.look()
    async with reader(db).connect() as conn:
        named = await _job_of(conn, job_id)
        jobs = [job for job in await list_jobs(conn, seen) if job.id == named]
        shown = await jobs_json(conn, jobs, snapshots.schedulers)
        waiting = await explain_job(conn, seen, named, snapshots.schedulers)
        fallback: list[str] = []
        if isinstance(named, int):
            fallback = await explain_fallback(
                conn, named, snapshots.schedulers, snapshots.agent_timeout_s
            )
    if not shown:
        noun = "task" if isinstance(named, str) else "experiment"
        raise NotFound(
            f"{noun} {named} is in no queue: it is paused, over, or runs outside of the cluster"
        )
    return JsonResponse({"job": shown[0], "waiting": waiting, "fallback": fallback})


async def _job_of(conn: AsyncConnection, job_id: str) -> int | str:
    """The experiment's number, or the task's id, that a job's id or itself names. Raises NotFound."""
    e, k = experiments.c, tasks.c
    if job_id.isdecimal() and len(job_id) <= 9:
        wanted = e.id == int(job_id)
        task = None
    else:
        try:
            named = uuid.UUID(job_id)
        except ValueError as error:
            raise NotFound(
                f"job {job_id!r} does not exist: a job is named by its UUID, its experiment's number or its "
                "task's ID"
            ) from error
        wanted = e.job_id == named
        task = sa.and_(k.job_id.is_not(None), sa.or_(k.job_id == named, k.id == str(named)))
    found: int | None = (await conn.execute(sa.select(e.id).where(wanted))).scalar_one_or_none()
    if found is not None:
        return found
    if task is not None:
        task_id: str | None = await conn.scalar(sa.select(k.id).where(task))
        if task_id is not None:
            return task_id
    raise NotFound(f"job {job_id} does not exist")


class Update(BaseModel):
    """``v1QueueControl``: one change of one job. ``aheadOf`` and ``behindOf`` name another job."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    job_id: Name
    priority: Priority | None = None
    weight: Weight | None = None
    resource_pool: Name | None = None
    ahead_of: Name | None = None
    behind_of: Name | None = None

    def given(self) -> str:
        """The name of the one change. Raises BadRequest."""
        names = ("priority", "weight", "resource_pool", "ahead_of", "behind_of")
        found = [name for name in names if getattr(self, name) not in (None, "")]
        if len(found) != 1:
            allowed = ", ".join(map(to_camel, names))
            said = f"not {', '.join(map(to_camel, found))}" if found else "and none is given"
            raise BadRequest(f"job {self.job_id}: an update changes one of {allowed}, {said}")
        return found[0]


class Updates(BaseModel):
    """``v1UpdateJobQueueRequest``."""

    updates: list[Update] = Field(max_length=MAX_UPDATES)


@router.post("/job-queues")
async def update_queue(
    given: Updates,
    admission: Annotated[Admission, may_named(Action.CHANGE, Kind.EXPERIMENT, "move in the queue")],
    db: Db,
    snapshots: SnapshotsOf,
) -> dict[str, Any]:
    """Changes priority, weight, place in line or resource pool of jobs, one after the other, at once.

    All jobs and rights are looked at before the first change. When one is refused after that, those before it
    have been made, and the message says which it was. Ours: `remarks`, sentences on further changes and
    ignored settings.
    """
    changes = [one.given() for one in given.updates]
    async with reader(db).connect() as conn, as_asker(conn):
        ids = [await _job_of(conn, one.job_id) for one in given.updates]
        anchors = [
            await _job_of(conn, name) if (name := one.ahead_of or one.behind_of) else None
            for one in given.updates
        ]
    if numbers := [one for one in dict.fromkeys(ids) if isinstance(one, int)]:
        await admission.admit(*numbers)
    if names := [one for one in dict.fromkeys(ids) if isinstance(one, str)]:
        await admission.admit(*names, kind=Kind.TASK)
    remarks: list[str] = []
    for number, (one, what, job, anchor) in enumerate(
        zip(given.updates, changes, ids, anchors, strict=True), 1
    ):
        try:
            remarks += await _update(db, snapshots.schedulers, one, what, job, anchor)
        except ApiError as error:
            if len(given.updates) > 1:
                done = f"{number - 1} made before it"
                error.message = f"update {number} of {len(given.updates)} ({done}): {error.message}"
            raise
    return {"remarks": remarks}


async def _update(
    db: Database,
    schedulers: PoolSchedulers,
    given: Update,
    what: str,
    job: int | str,
    anchor: int | str | None,
) -> list[str]:
    if isinstance(job, str) and what != "priority":
        raise BadRequest(f"job {job}: of a task, only its priority can be changed")
    if isinstance(anchor, str):
        raise BadRequest(f"{to_camel(what)}: {anchor} is a task, beside which nothing can be moved")
    async with changing(db) as change:
        if isinstance(job, str):
            return await set_task_priority(change, job, given.priority, schedulers)
        if anchor is not None:
            await job_changes.lock_queue(change)
            return await job_changes.move_beside(
                change,
                job,
                anchor,
                ahead=what == "ahead_of",
                schedulers=schedulers,
            )
        if what == "resource_pool":
            assert given.resource_pool is not None
            return await job_changes.move_to_pool(change, job, given.resource_pool, schedulers)
        value = {what: getattr(given, what)}
        return await job_changes.set_resources(change, job, value, schedulers)
