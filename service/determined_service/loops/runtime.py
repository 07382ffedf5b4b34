"""The service's background loops: scheduler, mirror, reconciler, in one process of the cluster.

The leader is the process that holds an advisory lock of Postgres. The lock is lost with the connection, so
another process replaces a leader that dies or loses its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import httpx
import psycopg
import sqlalchemy as sa
from fastapi import FastAPI

from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.hub import Hub, wait_at_most
from determined_service.base.settings import Settings
from determined_service.deleting import notebook_files
from determined_service.loops import ended_tasks
from determined_service.loops.due_pipelines import DuePipelines
from determined_service.loops.due_retrainings import DueRetrainings
from determined_service.loops.reconciler import GAP_S, PASS_S, Reconciler
from determined_service.prefect.gateway import PrefectGateway, import_prefect
from determined_service.prefect.keeper import Keeper
from determined_service.prefect.mirror import Mirror
from determined_service.prefect.pages.writing import RunPages
from determined_service.prefect.work_pools import WorkPools
from determined_service.scheduling.placement import schedule_forever
from determined_service.scheduling.pools import PoolSchedulers
from determined_service.scheduling.reading import SnapshotReader

logger = logging.getLogger(__name__)

# Any constant will do, so long as nothing else in the database locks the same one.
LEADER_KEY = 0x6465746C6561
TRY_AGAIN_S = 5.0
WATCH_S = 10.0


async def start(app: FastAPI) -> list[asyncio.Task[None]]:
    """Starts every loop; the caller cancels them at stop."""
    state = app.state
    leading = _lead_for_ever(state.settings, state.db, state.hub, state.snapshots.schedulers)
    return [asyncio.create_task(leading, name="leader")]


async def _lead_for_ever(
    settings: Settings, db: Database, hub: Hub, schedulers: PoolSchedulers
) -> None:
    while True:
        try:
            async with _leadership(settings.db_url) as lock:
                if lock is not None:
                    await _lead(settings, db, hub, schedulers, lock)
        except* (psycopg.OperationalError, OSError) as group:
            logger.warning("leadership lost: %s", group.exceptions[0])
        except* Exception:
            logger.exception("a background loop failed; all of them start again")
        await asyncio.sleep(TRY_AGAIN_S)


@contextlib.asynccontextmanager
async def _leadership(db_url: str) -> AsyncIterator[psycopg.AsyncConnection | None]:
    """The connection that holds the lock; None: another process leads."""
    async with await psycopg.AsyncConnection.connect(db_url, autocommit=True) as conn:
        found = await conn.execute("SELECT pg_try_advisory_lock(%s)", [LEADER_KEY])
        row = await found.fetchone()
        yield conn if row is not None and row[0] else None


async def _lead(
    settings: Settings,
    db: Database,
    hub: Hub,
    schedulers: PoolSchedulers,
    lock: psycopg.AsyncConnection,
) -> None:
    snapshots = SnapshotReader(schedulers, settings.agent_timeout_s)
    async with contextlib.AsyncExitStack() as stack:
        gateway = None
        if settings.prefect_api_url is not None:
            # Most of a second of imports: not in the event loop's thread.
            await asyncio.to_thread(import_prefect)
            gateway = await stack.enter_async_context(PrefectGateway(settings))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(_watch(lock), name="leader's lock")
        tasks.create_task(schedule_forever(db, hub, snapshots), name="scheduler")
        if gateway is not None:
            pages = RunPages(db, gateway, settings)
            mirror = Mirror(db, hub, gateway, settings, pages)
            tasks.create_task(mirror.run(), name="mirror")
            tasks.create_task(pages.run(), name="pages of runs")
            tasks.create_task(Keeper(db, gateway, settings).run(hub), name="keeper of runs")
            for due in (DueRetrainings(db), DuePipelines(db)):
                tasks.create_task(due.run(hub), name=due.topic)
            tasks.create_task(WorkPools(db, gateway, settings).run(hub), name="work pools")
        rule = notebook_files.apply_rule_forever(db, settings)
        tasks.create_task(rule, name="kept files of notebooks")
        trimming = ended_tasks.trim_forever(db, gateway, settings)
        tasks.create_task(trimming, name="ended tasks")
        reconciler = Reconciler(
            db,
            gateway,
            settings.agent_timeout_s,
            start_timeout_s=settings.start_timeout_s,
            stuck_run_s=settings.stuck_run_s,
            schedulers=schedulers,
        )
        tasks.create_task(_reconcile(reconciler, hub), name="reconciler")


async def _watch(lock: psycopg.AsyncConnection) -> None:
    """Fails when the lock's connection does."""
    while True:
        await asyncio.sleep(WATCH_S)
        await lock.execute("SELECT 1")


async def _reconcile(reconciler: Reconciler, hub: Hub) -> None:
    while True:
        with hub.subscribe([topics.RECONCILER]) as event:
            if await wait_at_most(event, PASS_S):
                await asyncio.sleep(GAP_S)
        try:
            await reconciler.run_pass()
        except (httpx.HTTPError, sa.exc.OperationalError) as error:
            # Prefect or Postgres is away for a while: the next pass sees the same again.
            logger.warning(
                "Prefect or Postgres does not answer, the reconciler tries again in the next pass: %s",
                error,
            )
