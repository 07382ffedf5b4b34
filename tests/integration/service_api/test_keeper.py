"""The keeper of flow runs: two leaders at once, stale reads, and its messages to agents."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httpx
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import experiments, kept_runs
from determined_service.prefect.gateway import NotDeployed
from determined_service.prefect.keeper import Keeper
from determined_service.state import run_records
from determined_service.state.change import changing
from tests.integration.service_api.flow_runs import FakeRuns, keep
from tests.integration.service_api.world import World
from tests.waiting import TIMEOUT_S

CONFIG = """
name: kept
entrypoint: python3 train.py
hyperparameters: {}
searcher: {name: single, metric: loss, max_length: {batches: 1}}
"""


async def submit(user: httpx.AsyncClient, **more: Any) -> int:
    answer = await user.post("/api/v1/experiments", json={"config": CONFIG, **more})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["experiment"]["id"])


async def kept(world: World) -> list[Any]:
    r = kept_runs.c
    return await world.rows(sa.select(kept_runs).where(r.experiment_id.is_not(None)).order_by(r.id))


async def test_two_leaders_at_once_make_one_run_of_each(
    world: World, user: httpx.AsyncClient, service_app: FastAPI
) -> None:
    numbers = [await submit(user) for _ in range(3)]
    runs = FakeRuns("experiment")
    await asyncio.gather(*(keep(service_app, runs) for _ in range(2)))
    assert sorted(runs.made) == [f"kept #{number}" for number in numbers]
    assert {row.flow_run_id for row in await kept(world)} == set(runs.states)
    # Both find all flows dead.
    runs.all_become("CRASHED")
    await asyncio.gather(*(keep(service_app, runs) for _ in range(2)))
    assert {(row.interruptions, row.runs) for row in await kept(world)} <= {(1, 1), (1, 2)}
    assert set(runs.states.values()) == {"SCHEDULED"}


async def test_a_paused_experiment_gets_its_run_when_it_is_activated(
    world: World, user: httpx.AsyncClient, service_app: FastAPI
) -> None:
    number = await submit(user, activate=False)
    runs = FakeRuns("experiment")
    await keep(service_app, runs)
    assert (runs.made, await kept(world)) == ([], [])
    for _ in range(2):
        assert (await user.post(f"/api/v1/experiments/{number}/activate")).is_success
    await keep(service_app, runs)
    await keep(service_app, runs)
    assert runs.made == [f"kept #{number}"]


class SlowRuns(FakeRuns):
    """Answers only when ``let`` is set."""

    def __init__(self) -> None:
        super().__init__("experiment")
        self.asked, self.let = asyncio.Event(), asyncio.Event()

    async def set_state(self, run_id: uuid.UUID, type: str, name: str, message: str) -> None:
        self.asked.set()
        await self.let.wait()
        await super().set_state(run_id, type, name, message)


async def test_a_leader_does_not_write_outdated_rows(
    world: World, user: httpx.AsyncClient, service_app: FastAPI
) -> None:
    """A slow leader settles the run of an experiment that was continued meanwhile: the run stays kept."""
    number = await submit(user)
    runs = SlowRuns()
    await keep(service_app, runs)
    assert (await user.post(f"/api/v1/experiments/{number}/kill")).is_success
    runs.all_become("CRASHED")
    settling = asyncio.create_task(keep(service_app, runs))
    await asyncio.wait_for(runs.asked.wait(), TIMEOUT_S)
    async with changing(world.db) as change:
        await change.conn.execute(sa.update(experiments).values(state="ACTIVE", end_time=None))
        await run_records.wake(change, run_records.EXPERIMENT, number)
    runs.let.set()
    await settling
    (row,) = await kept(world)
    assert (row.settled, row.wake, list(runs.states.values())) == (False, True, ["CANCELLED"])
    # Nobody cancelled the run, so it is started again.
    await keep(service_app, runs)
    assert list(runs.states.values()) == ["SCHEDULED"]
    (row,) = await kept(world)
    assert (row.settled, row.wake, row.interruptions) == (False, False, 0)


async def test_an_experiment_whose_run_was_deleted_fails(
    world: World, user: httpx.AsyncClient, service_app: FastAPI
) -> None:
    number = await submit(user)
    runs = FakeRuns("experiment")
    await keep(service_app, runs)
    runs.states.clear()
    await keep(service_app, runs)
    (found,) = await world.rows(sa.select(experiments.c.state, experiments.c.reason))
    assert tuple(found) == ("ERROR", "its run was deleted in Prefect")
    await keep(service_app, runs)
    assert (runs.made, [row.settled for row in await kept(world)]) == ([f"kept #{number}"], [True])


async def test_a_run_that_replaces_another_is_kept_and_the_other_is_remembered(
    world: World, user: httpx.AsyncClient, agent: httpx.AsyncClient, service_app: FastAPI
) -> None:
    """Somebody has copied the run on Prefect's page, and the copy drives the search now."""
    number = await submit(user)
    runs = FakeRuns("experiment")
    await keep(service_app, runs)
    (first,) = runs.states
    copy = uuid.uuid4()
    body = {"driver": str(uuid.uuid4()), "flow_run_id": str(copy)}
    path = f"/internal/v1/experiments/{number}/search/attach"
    assert (await agent.post(path, json=body)).is_success
    (row,) = await kept(world)
    assert (row.flow_run_id, row.earlier_flow_run_ids) == (copy, [first])
    shown = (await user.get(f"/api/v1/experiments/{number}")).json()["experiment"]
    assert shown["flowRunId"] == str(copy)


async def test_a_refusal_for_one_run_stops_no_other(
    world: World, user: httpx.AsyncClient, service_app: FastAPI
) -> None:
    class Refusing(FakeRuns):
        async def create_run(self, deployment: str, *, key: str, name: str, **_: Any) -> uuid.UUID:
            if name.endswith(f"#{first}"):
                asked = httpx.Request("POST", "http://prefect")
                raise httpx.HTTPStatusError("no", request=asked, response=httpx.Response(422))
            return await super().create_run(deployment, key=key, name=name)

    first, second = await submit(user), await submit(user)
    runs = Refusing("experiment")
    await keep(service_app, runs)
    assert runs.made == [f"kept #{second}"]
    assert (await kept(world))[0].flow_run_id is None


async def test_without_deployments_it_tries_again(
    world: World, user: httpx.AsyncClient, service_app: FastAPI
) -> None:
    """The agent of a new cluster has not registered them yet."""

    class Waiting(FakeRuns):
        tries = 0
        created = asyncio.Event()

        async def create_run(self, deployment: str, *, key: str, name: str, **_: Any) -> uuid.UUID:
            self.tries += 1
            if self.tries < 3:
                raise NotDeployed("run `prefect deploy`")
            self.created.set()
            return await super().create_run(deployment, key=key, name=name)

    await submit(user)
    runs = Waiting("experiment")
    state = service_app.state
    keeper = asyncio.create_task(Keeper(state.db, runs, state.settings).run(state.hub))
    await asyncio.wait_for(runs.created.wait(), TIMEOUT_S)
    keeper.cancel()
    await asyncio.gather(keeper, return_exceptions=True)
    assert len(runs.made) == 1
