"""Containers of one allocation find each other through the service, even if requests fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from asgi_lifespan import LifespanManager
from fastapi import FastAPI

from determined_registry.database.tables import allocation_gathers, allocation_resources
from determined_service.app import create_app
from determined_service.base.settings import Settings
from determined_service.lifecycle import gangs
from tests.integration.conftest import client_of
from tests.integration.control.world import Trial, World, ok
from tests.waiting import TIMEOUT_S, until_async


@pytest.fixture
async def trial(world: World) -> AsyncIterator[Trial]:
    """A trial whose allocation has three containers, in the form in which the scheduler places gangs."""
    await world.register()
    await world.started()
    made = (await world.both())["launch"]
    found = Trial(world, made[0])
    rows = [
        {
            "allocation_id": found.allocation_id,
            "id": f"{found.allocation_id}.{agent}",
            "agent_id": agent,
            "slot_ids": slots,
        }
        for agent, slots in (("left", [0]), ("mid", [0, 1, 2]), ("right", [4, 5]))
    ]
    async with world.app.state.db.tx() as conn:
        await conn.execute(sa.insert(allocation_resources), rows)
    yield found


def path(trial: Trial, agent: str) -> str:
    allocation = trial.allocation_id
    return f"/api/v1/allocations/{allocation}/resources/{allocation}.{agent}/rendezvous"


async def meet(trial: Trial, agent: str, address: str) -> dict[str, Any]:
    for _ in range(2):  # a repeated request is harmless
        ok(await trial.client.post(path(trial, agent), json={"address": address}))
    found: dict[str, Any] = ok(await trial.client.get(path(trial, agent)))["rendezvousInfo"]
    return found


async def test_ranks_follow_addresses(trial: Trial) -> None:
    found = await asyncio.gather(
        meet(trial, "left", "10.0.0.9"),
        meet(trial, "mid", "10.0.0.1"),
        meet(trial, "right", "10.0.0.5"),
    )
    together = {"addresses": ["10.0.0.1", "10.0.0.5", "10.0.0.9"], "slots": [3, 2, 1]}
    assert found == [{**together, "rank": rank} for rank in (2, 0, 1)]


async def test_missing_ranks_are_named(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gangs, "LIMIT_S", 0.2)
    for agent in ("left", "right"):
        ok(await trial.client.post(path(trial, agent), json={"address": agent}))
    answer = await trial.client.get(path(trial, "left"))
    assert answer.status_code == 409
    assert f"missing: {trial.allocation_id}.mid (on mid)" in answer.text
    assert "right" not in answer.text


async def test_strangers_are_refused(world: World, trial: Trial) -> None:
    answer = await trial.client.get(path(trial, "nobody"))
    assert answer.status_code == 404
    assert f"it has {trial.allocation_id}.left, " in answer.text
    assert (
        await trial.client.post(path(trial, "nobody"), json={"address": "a"})
    ).status_code == 404
    other = path(trial, "left").replace(trial.allocation_id, f"{trial.allocation_id}0")
    assert (await trial.client.get(other)).status_code == 403
    ok(await trial.exited())
    assert "has ended" in (await trial.client.get(path(trial, "left"))).text


async def test_one_container_meets_itself(world: World) -> None:
    await world.register()
    await world.started()
    alone = Trial(world, (await world.both())["launch"][0])
    found = ok(await alone.client.get(path(alone, "a1")))["rendezvousInfo"]
    assert found == {"addresses": ["h"], "rank": 0, "slots": [1]}
    ok(await alone.client.post(path(alone, "a1"), json={"address": "elsewhere"}))
    assert (await alone.client.get(path(alone, "b1"))).status_code == 404


async def gather(client: httpx.AsyncClient, trial: Trial, name: str, peers: int = 2) -> Any:
    body = {"requestUuid": name, "numPeers": peers, "data": {"from": name[0]}}
    return await client.post(f"/api/v1/allocations/{trial.allocation_id}/all_gather", json=body)


async def test_rounds_of_gathering(world: World, trial: Trial) -> None:
    for number in range(4):
        names = [f"{who}{number}" for who in "ab"]
        both = await asyncio.gather(*(gather(trial.client, trial, name) for name in names))
        first, second = (ok(answer)["data"] for answer in both)
        assert first == second
        assert sorted(item["from"] for item in first) == ["a", "b"]
        again = ok(await gather(trial.client, trial, names[0]))["data"]  # the answer was lost
        assert again == first
    async with world.app.state.db.tx() as conn:
        kept = await conn.execute(sa.select(sa.func.count()).select_from(allocation_gathers))
    assert kept.scalar_one() == 4  # of two rounds


async def test_too_few_come_to_the_gathering(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gangs, "LIMIT_S", 0.2)
    answer = await gather(trial.client, trial, "a", peers=3)
    assert answer.status_code == 409
    assert "only 1 of 3 processes" in answer.text
    answer = await gather(trial.client, trial, "b", peers=2)
    assert "numPeers is 2 here and 3" in answer.text
    assert (await gather(trial.client, trial, "c", peers=0)).status_code == 400


async def test_a_gathering_outlives_the_service(
    service_app: FastAPI, settings: Settings, trial: Trial
) -> None:
    token = trial.client.headers["Authorization"].removeprefix("Bearer ")
    waiting = asyncio.create_task(gather(trial.client, trial, "a"))
    async with service_app.state.db.tx() as conn:
        count = sa.select(sa.func.count()).select_from(allocation_gathers)

        async def gathered() -> int:
            return int((await conn.execute(count)).scalar_one())

        await until_async("the first process waiting", gathered)
    waiting.cancel()  # its connection ends with the first service
    again = create_app(settings)
    lifespan = LifespanManager(again, startup_timeout=TIMEOUT_S, shutdown_timeout=TIMEOUT_S)
    async with lifespan, client_of(again, token) as client:
        answers = await asyncio.gather(gather(client, trial, "b"), gather(client, trial, "a"))
    assert [ok(answer)["data"] for answer in answers] == [[{"from": "a"}, {"from": "b"}]] * 2
