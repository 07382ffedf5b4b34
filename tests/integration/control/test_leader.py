"""One process of several leads."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI

from determined_service.control import runtime
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import World


async def stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def leaders(world: World) -> int:
    rows = await world.rows(
        "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    return len(rows)


async def test_a_second_process_takes_over(
    world: World, service_app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "TRY_AGAIN_S", 0.1)
    first = next(task for task in asyncio.all_tasks() if task.get_name() == "leader")
    second = await runtime.start(service_app)
    await asyncio.sleep(0.3)
    assert await leaders(world) == 1
    await stop([first])
    await world.register(slots=1)
    await world.started(SINGLE)
    await world.launched()
    assert await leaders(world) == 1
    await stop(second)
    assert await leaders(world) == 0


async def test_a_leader_that_loses_its_connection_leads_again(
    world: World, service_app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "TRY_AGAIN_S", 0.1)
    monkeypatch.setattr(runtime, "WATCH_S", 0.1)
    await stop([task for task in asyncio.all_tasks() if task.get_name() == "leader"])
    tasks = await runtime.start(service_app)
    while await leaders(world) == 0:
        await asyncio.sleep(0.05)
    await world.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_locks"
        " WHERE locktype = 'advisory' AND database ="
        " (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    while await leaders(world) == 1:
        await asyncio.sleep(0.01)
    while await leaders(world) == 0:
        await asyncio.sleep(0.05)
    await world.register(slots=1)
    await world.started(SINGLE)
    await world.launched()
    await stop(tasks)
