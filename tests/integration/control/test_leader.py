"""One process of several leads."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI

from determined_service.loops import runtime
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import World
from tests.waiting import until_async


async def stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def holders(world: World) -> list[int]:
    """Postgres processes that hold the leader's lock."""
    rows = await world.rows(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    return [row["pid"] for row in rows]


async def test_a_second_process_takes_over(
    world: World, service_app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "TRY_AGAIN_S", 0.1)
    first = next(task for task in asyncio.all_tasks() if task.get_name() == "leader")
    second = await runtime.start(service_app)
    await asyncio.sleep(0.3)
    assert len(await holders(world)) == 1
    await stop([first])
    await world.register(slots=1)
    await world.started(SINGLE)
    await world.launched()
    assert len(await holders(world)) == 1
    await stop(second)

    # Postgres' process notices a moment later that its client has gone.
    await until_async("nobody who leads", lambda: holders(world), equals=[])


async def test_a_leader_that_loses_its_connection_leads_again(
    world: World, service_app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "TRY_AGAIN_S", 0.1)
    monkeypatch.setattr(runtime, "WATCH_S", 0.1)
    await stop([task for task in asyncio.all_tasks() if task.get_name() == "leader"])
    tasks = await runtime.start(service_app)
    holder = await until_async("a leader", lambda: holders(world))
    await world.rows("SELECT pg_terminate_backend(:pid)", pid=holder[0])

    async def somebody_else() -> bool:
        return await holders(world) not in ([], holder)

    await until_async("another leader", somebody_else)
    await world.register(slots=1)
    await world.started(SINGLE)
    await world.launched()
    await stop(tasks)
