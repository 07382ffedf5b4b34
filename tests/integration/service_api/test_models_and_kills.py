"""`kill -9` of the service in the middle of a promotion: the promotion happened completely or not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import types
import uuid
from pathlib import Path
from typing import cast

import httpx
import psycopg
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry import models as registry
from determined_registry.database.tables import checkpoints, users
from determined_service.base.db import Database
from tests.fuzz.guests import AGENT_TOKEN, service_on
from tests.integration.service_api.world import World
from tests.waiting import until

ALIAS = "/api/v1/models/digits/aliases/champion"


async def two_versions(database_url: str) -> None:
    """Of the model `digits`; the first is the champion."""
    db = Database(database_url)
    world = World(cast(FastAPI, types.SimpleNamespace(state=types.SimpleNamespace(db=db))))
    experiment_id = await world.experiment()
    checkpoint = uuid.uuid4()
    async with db.tx() as conn:
        await conn.execute(
            sa.insert(checkpoints).values(
                uuid=checkpoint, state="COMPLETED", experiment_id=experiment_id
            )
        )
        found = await conn.execute(sa.select(users.c.id).where(users.c.username == "determined"))
        owner = found.scalar_one()
        await conn.run_sync(registry.create_model, "digits", owner)
        for _ in range(2):
            await conn.run_sync(registry.register_version, "digits", checkpoint, owner)
        await conn.run_sync(registry.set_alias, "digits", "champion", 1, owner)
    await db.close()


def facts(conn: psycopg.Connection[tuple[int]]) -> tuple[list[tuple[int]], list[tuple[int]]]:
    """The alias's version, and the versions in its history."""
    return (
        conn.execute("SELECT version FROM model_aliases").fetchall(),
        conn.execute("SELECT to_version FROM model_alias_history ORDER BY id").fetchall(),
    )


def promote(url: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {AGENT_TOKEN}"}
    return httpx.put(f"{url}{ALIAS}", json={"version": 2}, headers=headers, timeout=60)


def test_a_promotion_is_whole_or_was_not(database_url: str, tmp_path: Path) -> None:
    asyncio.run(two_versions(database_url))
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    with psycopg.connect(database_url, autocommit=True) as seen:
        with (
            service_on(database_url, tmp_path) as service,
            psycopg.connect(database_url) as holding,
        ):
            # The service waits at the history after it has moved the alias.
            holding.execute("LOCK TABLE model_alias_history IN SHARE MODE")

            def ask() -> None:
                with contextlib.suppress(httpx.HTTPError):
                    promote(service.url)

            asking = threading.Thread(target=ask)
            asking.start()
            until(
                "a promotion half done",
                lambda: (
                    seen.execute(waiting, ["INSERT INTO model_alias_history%"]).fetchone()
                    is not None
                ),
            )
            os.kill(service.pid, signal.SIGKILL)
            asking.join()
        # Postgres ends the transaction when it detects that the client is gone.
        live = "SELECT FROM pg_stat_activity WHERE query LIKE 'INSERT INTO model_alias_history%'"
        until(
            "the transaction's end",
            lambda: seen.execute(f"{live} AND state <> 'idle'").fetchone() is None,
        )
        assert facts(seen) == ([(1,)], [(1,)])
        with service_on(database_url, tmp_path) as service:
            assert promote(service.url).json()["fromVersion"] == 1
        assert facts(seen) == ([(2,)], [(1,), (2,)])
