"""`kill -9` of the service in the middle of a promotion, an approval and a schedule: each happens once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import psycopg
from fastapi import FastAPI

from determined_service.base.db import Database
from tests.fuzz.guests import AGENT_TOKEN, Service, service_on
from tests.integration.service_api.pipeline_requests import Pipelines, ok, step
from tests.integration.service_api.test_retraining import RETRAINING, Retraining
from tests.integration.service_api.world import World
from tests.waiting import until

HEADERS = {"Authorization": f"Bearer {AGENT_TOKEN}"}
PREFECT_AWAY = {"prefect_api_url": "http://127.0.0.1:9/api"}
"""The leader looks for what is due where there is a Prefect; this one never answers."""


@contextlib.asynccontextmanager
async def client_of(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.url, headers=HEADERS, timeout=60) as client:
        yield client


@contextlib.asynccontextmanager
async def world_of(database_url: str) -> AsyncIterator[World]:
    db = Database(database_url)
    yield World(cast(FastAPI, types.SimpleNamespace(state=types.SimpleNamespace(db=db))))
    await db.close()


async def half_done(
    database_url: str, service: Service, table: str, act: Callable[[], Awaitable[Any]]
) -> None:
    """Kills the service while a transaction of ``act`` waits with its insertion into the table, after all
    that it has written before. When this returns Postgres has given up that transaction."""

    async def asks() -> None:
        with contextlib.suppress(httpx.HTTPError):
            await act()

    def seen(words: str) -> bool:
        query = f"SELECT FROM pg_stat_activity WHERE query LIKE 'INSERT INTO {table}%%' AND {words}"
        return watching.execute(query).fetchone() is not None

    with psycopg.connect(database_url, autocommit=True) as watching:
        with psycopg.connect(database_url) as holding:
            holding.execute(f"LOCK TABLE {table} IN SHARE MODE")
            asking = asyncio.create_task(asks())
            waits = "wait_event_type = 'Lock'"
            await asyncio.to_thread(until, "a transaction half done", lambda: seen(waits))
            os.kill(service.pid, signal.SIGKILL)
            await asking
        lives = "state <> 'idle'"
        await asyncio.to_thread(until, "the transaction's end", lambda: not seen(lives))


def facts(database_url: str) -> tuple[list[Any], list[Any], list[Any]]:
    """The versions, the moves of aliases, and the runs of the retraining with their pipelines' states."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        runs = (
            "SELECT r.state, p.state FROM retraining_runs r "
            "JOIN pipelines p ON p.retraining_run_id = r.id ORDER BY r.id"
        )
        return (
            conn.execute("SELECT version FROM model_versions ORDER BY id").fetchall(),
            conn.execute("SELECT to_version FROM model_alias_history ORDER BY id").fetchall(),
            conn.execute(runs).fetchall(),
        )


async def test_a_promotion_and_its_run_are_whole_or_were_not(
    database_url: str, tmp_path: Path
) -> None:
    async with world_of(database_url) as world:
        with service_on(database_url, tmp_path) as service:
            async with client_of(service) as client:
                again = Retraining(world, client, client)
                await again.put()
                run_id = await again.run()
                _, evaluation = await again.trained(run_id)
                await again.evaluated(evaluation, None)
                act = lambda: again.advance(run_id)  # noqa: E731
                await half_done(database_url, service, "model_alias_history", act)
        # The decision stands, and nothing was done with it.
        assert facts(database_url) == ([], [], [("PROMOTING", "RUNNING")])
        with service_on(database_url, tmp_path) as service:
            async with client_of(service) as client:
                again = Retraining(world, client, client)
                assert (await again.advance(run_id))["state"] == "PROMOTED"
        assert facts(database_url) == ([(1,)], [(1,)], [("PROMOTED", "COMPLETED")])


async def test_an_approval_moves_the_alias_or_was_not(database_url: str, tmp_path: Path) -> None:
    path, yes = f"{RETRAINING}/approve", {"approve": True}
    async with world_of(database_url) as world:
        with service_on(database_url, tmp_path) as service:
            async with client_of(service) as client:
                again = Retraining(world, client, client)
                await again.put(approval=True)
                assert (await again.whole(None))["state"] == "WAITING_FOR_APPROVAL"
                act = lambda: client.post(path, json=yes)  # noqa: E731
                await half_done(database_url, service, "model_alias_history", act)
        waits = [("WAITING_FOR_APPROVAL", "WAITING_FOR_APPROVAL")]
        assert facts(database_url) == ([(1,)], [], waits)
        with service_on(database_url, tmp_path) as service:
            async with client_of(service) as client:
                ok(await client.post(path, json=yes))
                ok(await client.post(path, json=yes), 409)
        assert facts(database_url) == ([(1,)], [(1,)], [("PROMOTED", "COMPLETED")])


async def test_a_schedule_begins_one_pipeline(database_url: str, tmp_path: Path) -> None:
    listed = "SELECT again_of, cause, next_at > now() FROM pipelines ORDER BY id"

    def found() -> list[Any]:
        with psycopg.connect(database_url, autocommit=True) as conn:
            return conn.execute(listed).fetchall()

    async def is_due() -> None:
        with psycopg.connect(database_url) as conn:
            conn.execute("UPDATE pipelines SET next_at = now() - interval '1 day'")

    async with world_of(database_url) as world:
        with service_on(database_url, tmp_path, **PREFECT_AWAY) as service:
            async with client_of(service) as client:
                pipes = Pipelines(world, client, client)
                plan = {"schedule": {"interval_s": 3600}}
                one = await pipes.submit(step("a"), again=plan)
                await pipes.ask(one, "cancel")
                await half_done(database_url, service, "kept_runs", is_due)
        assert found() == [(None, None, False)]
        with service_on(database_url, tmp_path, **PREFECT_AWAY):
            await asyncio.to_thread(until, "the pipeline that was due", lambda: len(found()) > 1)
    assert found() == [(None, None, True), (one, "schedule", None)]
