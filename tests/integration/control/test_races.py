"""Everything at once: in any order, an experiment ends and leaves nothing over."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest

from tests.integration.control.test_search_path import ASHA
from tests.integration.control.world import Driver, Trial, World, ok
from tests.waiting import TIMEOUT_S

SEARCH = (
    ASHA.replace("max_trials: 4", "max_trials: 10")
    .replace("max_concurrent_trials: 2", "max_concurrent_trials: 5")
    .replace("max_restarts: 1", "max_restarts: 3")
)
# Answers that a correct client handles.
EXPECTED = {200, 400, 409}


class Process:
    """A training process that may fail at any point, and whose reports may arrive twice."""

    def __init__(self, trial: Trial, chance: random.Random) -> None:
        self.trial = trial
        self.chance = chance

    async def twice(self, call: object, *arguments: object) -> httpx.Response:
        answers = [await call(*arguments)]  # type: ignore[operator]
        if self.chance.random() < 0.3:
            answers.append(await call(*arguments))  # type: ignore[operator]
        assert {answer.status_code for answer in answers} <= EXPECTED, answers[-1].text
        return answers[0]

    async def run(self) -> None:
        trial, chance = self.trial, self.chance
        if (await self.twice(trial.started)).status_code != 200:
            return
        path = f"/api/v1/trials/{trial.id}/searcher/operation"
        while True:
            if chance.random() < 0.1:
                how = {"exit_code": 1} if chance.random() < 0.5 else {"kind": "infrastructure"}
                break
            answer = await trial.client.get(path, params={"timeout_s": 2})
            if answer.status_code != 200 or answer.json()["completed"]:
                how = {"exit_code": 0}
                break
            length = int(answer.json()["op"]["validateAfter"]["length"])
            await asyncio.sleep(chance.random() * 0.02)
            await self.twice(trial.complete, length, chance.random())
        ack = f"/api/v1/allocations/{trial.allocation_id}/signals/ack_preemption"
        assert (await trial.client.post(ack)).status_code in EXPECTED
        await self.twice(lambda: trial.exited(**how))


async def run_agent(world: World, chance: random.Random, finished: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        while not finished.is_set():
            for spec in (await world.work(0.1))["launch"]:
                group.create_task(Process(Trial(world, spec), chance).run())


async def meddle(
    world: World, experiment_id: int, chance: random.Random, finished: asyncio.Event
) -> None:
    """A user who cannot decide."""
    while not finished.is_set():
        await asyncio.sleep(chance.random() * 0.2)
        for verb in ("pause", "activate"):
            answers = await asyncio.gather(
                *(world.act(experiment_id, verb) for _ in range(chance.randint(1, 2)))
            )
            assert {answer.status_code for answer in answers} <= EXPECTED, answers[0].text
            await asyncio.sleep(chance.random() * 0.05)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_search_always_ends(world: World, seed: int) -> None:
    chance = random.Random(seed)
    await world.register(slots=4)
    driver = Driver(world, await world.submit(SEARCH))
    await driver.attach()
    finished = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(run_agent(world, chance, finished))
        group.create_task(meddle(world, driver.experiment_id, chance, finished))
        try:
            assert await asyncio.wait_for(driver.drive(), TIMEOUT_S) == "COMPLETED"
        finally:
            finished.set()
    await check_nothing_is_left(world)
    trials = await world.rows("SELECT * FROM trials")
    assert len(trials) >= 10
    assert all(trial["restarts"] <= 4 for trial in trials)
    closed = [e for e in await world.events(driver.experiment_id) if e["type"] == "trial_closed"]
    assert len(closed) == len(trials) == len({event["request_id"] for event in closed})


@pytest.mark.parametrize("verb", ["kill", "cancel"])
async def test_a_search_in_full_swing_is_stopped(world: World, verb: str) -> None:
    chance = random.Random(3)
    await world.register(slots=4)
    driver = Driver(world, await world.submit(SEARCH))
    await driver.attach()
    finished = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(run_agent(world, chance, finished))
        driving = group.create_task(driver.drive())
        await asyncio.sleep(0.3)
        for answer in await asyncio.gather(
            *(world.act(driver.experiment_id, verb) for _ in range(3))
        ):
            ok(answer)
        assert await asyncio.wait_for(driving, TIMEOUT_S) == "CANCELED"
        finished.set()
    await check_nothing_is_left(world)


async def check_nothing_is_left(world: World) -> None:
    assert not await world.rows("SELECT 1 FROM allocations WHERE state <> 'TERMINATED'")
    assert not await world.rows(
        "SELECT 1 FROM trials WHERE state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')"
    )
    # No two allocations of a trial lived at the same time.
    assert not await world.rows(
        """
        SELECT 1 FROM allocations a JOIN allocations b
        ON a.trial_id = b.trial_id AND a.run_id < b.run_id AND b.assigned_at < a.ended_at
        """
    )
    # A slot had one holder at a time.
    assert not await world.rows(
        """
        SELECT 1 FROM allocations a JOIN allocations b ON a.id < b.id
        AND a.agent_id = b.agent_id AND a.slot_ids = b.slot_ids
        AND a.assigned_at < b.ended_at AND b.assigned_at < a.ended_at
        """
    )
