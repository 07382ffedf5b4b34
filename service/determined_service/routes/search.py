"""What the flow that drives a search asks and commits."""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from determined_registry.tables import experiments, searches
from determined_service.api.state import Db, HubOf
from determined_service.auth import AgentAuth
from determined_service.control import search as searching
from determined_service.control import trials as trialing
from determined_service.control.change import changing, reader
from determined_service.control.reconciler import DRIVER_QUIET_S, RECONCILER
from determined_service.db import Database
from determined_service.errors import NotFound
from determined_service.hub import Hub, notify
from determined_service.json import JsonResponse
from determined_service.routes.waiting import T, poll, wait_seconds

router = APIRouter(prefix="/internal/v1", tags=["Search"])

DRIVER_WAIT_S = 10.0
"""Longest wait of a driver: asking is also its sign of life."""
SEEN_S = 5.0

_seen: dict[uuid.UUID, float] = {}


class Attachment(BaseModel):
    """A driver's own new id, and the Prefect run it is in."""

    driver: uuid.UUID
    flow_run_id: uuid.UUID | None = None


@router.post("/experiments/{experiment_id}/search/attach")
async def attach(experiment_id: int, given: Attachment, agent: AgentAuth, db: Db) -> Response:
    """The caller drives the search from now on; answers all it needs to go on."""
    async with changing(db) as change:
        found = await searching.attach(change, experiment_id, given.driver, given.flow_run_id)
    return JsonResponse(found)


@router.get("/experiments/{experiment_id}/search")
async def get_search(experiment_id: int, agent: AgentAuth, db: Db) -> Response:
    """Who drives the search, and where it stands."""
    async with reader(db).connect() as conn:
        found = await conn.execute(
            sa.select(
                experiments.c.state,
                experiments.c.reason,
                experiments.c.flow_run_id,
                searches.c.driver,
                searches.c.driver_seen_at,
                searches.c.committed_event_id,
                searches.c.last_event_id,
            )
            .join(searches, searches.c.experiment_id == experiments.c.id)
            .where(experiments.c.id == experiment_id)
        )
    row = found.first()
    if row is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    return JsonResponse(dict(row._mapping))


@router.get("/experiments/{experiment_id}/search/events")
async def read_events(
    request: Request,
    experiment_id: int,
    driver: uuid.UUID,
    agent: AgentAuth,
    db: Db,
    hub: HubOf,
    after: int = 0,
    state: str | None = None,
    timeout_s: float = 0.0,
) -> Response:
    """Events after the id ``after``; waits for one, or until the state is not ``state``."""
    last: dict[str, Any] = {}

    async def check() -> dict[str, Any] | None:
        nonlocal last
        async with reader(db).connect() as conn:
            last = await searching.read_events(conn, experiment_id, driver, after)
        # Without `state` the caller learns of changes by the announcement alone.
        changed = state is not None and last["state"] != state
        return last if last["events"] or changed or last["ended"] else None

    found = await poll_as_driver(request, db, hub, experiment_id, driver, check, timeout_s)
    return JsonResponse(found or last)


async def poll_as_driver(
    request: Request,
    db: Database,
    hub: Hub,
    experiment_id: int,
    driver: uuid.UUID,
    check: Callable[[], Awaitable[T | None]],
    timeout_s: float,
) -> T | None:
    """A long poll of who drives a search, on the search's topic."""
    await _note_driver(db, experiment_id, driver)
    topics = [f"search:{experiment_id}"]
    found = await poll(request, hub, topics, check, wait_seconds(timeout_s, limit=DRIVER_WAIT_S))
    if found is None and await request.is_disconnected():
        await _suspect_driver(db, experiment_id, driver)
    return found


async def _note_driver(db: Database, experiment_id: int, driver: uuid.UUID) -> None:
    now = time.monotonic()
    if now - _seen.get(driver, -SEEN_S) < SEEN_S:
        return
    for old in [key for key, at in _seen.items() if now - at > 60]:
        del _seen[old]
    _seen[driver] = now
    async with reader(db).connect() as conn:
        await conn.execute(
            sa.update(searches)
            .where(searches.c.experiment_id == experiment_id, searches.c.driver == driver)
            .values(driver_seen_at=sa.func.now())
        )


async def _suspect_driver(db: Database, experiment_id: int, driver: uuid.UUID) -> None:
    """It hung up while it waited: killed, perhaps. The reconciler looks at its run soon, unless it
    reads its events again."""
    _seen.pop(driver, None)
    async with reader(db).connect() as conn:
        await conn.execute(
            sa.update(searches)
            .where(searches.c.experiment_id == experiment_id, searches.c.driver == driver)
            .values(driver_seen_at=sa.func.now() - datetime.timedelta(seconds=DRIVER_QUIET_S))
        )
        await notify(conn, RECONCILER)


class Commit(BaseModel):
    """The searcher's answer to all events up to ``last_event_id`` (0: its first operations).

    ``snapshot`` may be left out; ``operations_digest`` is then of all operations since the last.
    """

    driver: uuid.UUID
    last_event_id: int
    operations: list[dict[str, Any]]
    snapshot: dict[str, Any] | None = None
    operations_digest: str | None = None
    progress: float = 0.0


@router.post("/experiments/{experiment_id}/search/commit")
async def commit(experiment_id: int, given: Commit, agent: AgentAuth, db: Db) -> Response:
    """Applies the operations and stores how far the search has come, in one transaction, once."""
    if not given.operations:
        async with reader(db).connect() as conn:
            quiet = await searching.commit_quietly(
                conn,
                experiment_id,
                given.driver,
                last_event_id=given.last_event_id,
                snapshot=given.snapshot,
                operations_digest=given.operations_digest,
                progress=given.progress,
            )
        if quiet is not None:
            return JsonResponse(quiet)
    async with changing(db) as change:
        found = await searching.commit(
            change,
            experiment_id,
            given.driver,
            last_event_id=given.last_event_id,
            operations=given.operations,
            snapshot=given.snapshot,
            operations_digest=given.operations_digest,
            progress=given.progress,
        )
    return JsonResponse(found)


class Failure(BaseModel):
    """Why the searcher cannot go on."""

    driver: uuid.UUID
    error: str


@router.post("/experiments/{experiment_id}/search/fail")
async def fail(experiment_id: int, given: Failure, agent: AgentAuth, db: Db) -> Response:
    """Ends the experiment in error."""
    async with changing(db) as change:
        await searching.fail(change, experiment_id, given.driver, given.error)
    return JsonResponse({})


class TrialRun(BaseModel):
    """The trial's run in Prefect."""

    flow_run_id: uuid.UUID


@router.post("/trials/{trial_id}/run")
async def set_trial_run(trial_id: int, given: TrialRun, agent: AgentAuth, db: Db) -> Response:
    """The run exists: the states kept for it may be delivered."""
    async with reader(db).connect() as conn:
        await trialing.set_flow_run(conn, trial_id, given.flow_run_id)
    return JsonResponse({})
