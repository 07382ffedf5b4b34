"""A search whose trials all fail stops after ``max_failures`` failures."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from tests.integration.control.test_continue import go_on
from tests.integration.control.test_custom_search_service import (
    CUSTOM,
    A,
    B,
    C,
    Search,
    create,
    train,
)
from tests.integration.control.world import CONFIG, Driver, Trial, World, ok
from tests.waiting import until_async

WHY = "FileNotFoundError: [Errno 2] No such file or directory: '/dta/{}' (train.py, line 3: open(path))"
THREE = CONFIG.replace("max_restarts: 1", "max_restarts: 0\nmax_failures: 3").replace(
    "max_trials: 4, max_concurrent_trials: 2", "max_trials: 50, max_concurrent_trials: 2"
)
RANDOM = "{name: random, metric: loss, max_length: 8, max_trials: 50, max_concurrent_trials: 2}"
RUNGS = "max_length: {batches: 8}, max_trials: 50, max_concurrent_trials: 2"
SEARCHERS = {
    "random": RANDOM,
    "random, trials that decide themselves": RANDOM.replace(" max_length: 8,", ""),
    "grid": "{name: grid, metric: loss, max_length: 8, max_concurrent_trials: 2}",
    "async_halving": f"{{name: async_halving, metric: loss, num_rungs: 2, {RUNGS}}}",
    "async_halving, by time": "{name: async_halving, metric: loss, num_rungs: 2, time_metric: batches,"
    " max_time: 8, max_trials: 50, max_concurrent_trials: 2}",
    "adaptive_asha": f"{{name: adaptive_asha, metric: loss, {RUNGS}}}",
    "tpe": f"{{name: tpe, metric: loss, {RUNGS}}}",
    "pbt": "{name: pbt, metric: loss, population_size: 8, num_rounds: 4, max_length: 8}",
}


async def fail(trial: Trial, why: str | None = WHY) -> None:
    ok(await trial.started())
    ok(await trial.exited(exit_code=1, reason=why and why.format(trial.id)))


async def legs(world: World, driver: Driver, count: int) -> list[Trial]:
    """The next ``count`` legs that start, while the search goes on."""
    found: list[Trial] = []

    async def enough() -> bool:
        found.extend(Trial(world, spec) for spec in (await world.work())["launch"])
        await driver.step()
        return len(found) >= count

    await until_async(f"{count} legs", enough)
    assert len(found) == count
    return found


async def fail_in_turn(world: World, driver: Driver, count: int) -> list[int]:
    """Fails the next ``count`` trials on the one slot there is; their ids."""
    failed = []
    for _ in range(count):
        (trial,) = await legs(world, driver, 1)
        await fail(trial)
        failed.append(trial.id)
    return failed


async def state(world: World, driver: Driver) -> str:
    return str((await world.experiment(driver.experiment_id))["state"])


@pytest.mark.parametrize("searcher", SEARCHERS)
async def test_whatever_the_search_method(world: World, searcher: str) -> None:
    config = THREE.replace(RANDOM, SEARCHERS[searcher]).replace(
        "minval: 1, maxval: 1000", "minval: 1, maxval: 1000, count: 50"
    )
    assert searcher == "random" or SEARCHERS[searcher] in config
    await world.register(slots=1)
    driver = await world.started(config)
    failed = await fail_in_turn(world, driver, 2)
    assert await state(world, driver) == "ACTIVE"
    failed += await fail_in_turn(world, driver, 1)
    experiment = await world.experiment(driver.experiment_id)
    assert experiment["state"] == "ERROR"
    assert experiment["reason"] == (
        "3 trials in a row failed before any trial reported a metric, all of them as trial "
        f"{failed[-1]} did: process exited with code 1: {WHY.format(failed[-1])}. Correct the cause and "
        "submit again; the limit is max_failures (3; null = none)"
    )
    assert await driver.drive() == "ERROR"
    assert not (await world.work())["launch"]
    rows = await world.rows("SELECT id, state FROM trials")
    assert {row["id"] for row in rows if row["state"] == "ERROR"} == set(failed)
    assert {row["state"] for row in rows} <= {"ERROR", "CANCELED"}


async def test_a_running_sibling_is_killed_and_the_count_is_exact(world: World) -> None:
    """Two processes fail at the same moment, while a third one runs."""
    await world.register(slots=3)
    config = THREE.replace("max_concurrent_trials: 2", "max_concurrent_trials: 3")
    driver = await world.started(config)
    first, second, running = await legs(world, driver, 3)
    ok(await running.started())
    await asyncio.gather(fail(first), fail(second), fail(first))  # one report comes twice
    assert await state(world, driver) == "ACTIVE"
    third, fourth = await legs(world, driver, 2)
    # The driver dies; the count is not its business.
    again = Driver(world, driver.experiment_id)
    await again.attach()
    ok(await third.started())
    await asyncio.gather(fail(third), fail(fourth))
    assert await state(world, again) == "STOPPING_ERROR"
    told = (await world.work())["kill"]
    assert running.allocation_id in str(told)
    ok(await running.exited(exit_code=None, signal=9))
    assert await again.drive() == "ERROR"
    rows = {row["id"]: row["state"] for row in await world.rows("SELECT id, state FROM trials")}
    assert rows[running.id] == "CANCELED"
    # The fourth was told to stop by the end of the third, or the other way round.
    assert sorted([rows[third.id], rows[fourth.id]]) == ["CANCELED", "ERROR"]


async def test_a_failure_counts_after_the_restarts(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started(THREE.replace("max_restarts: 0", "max_restarts: 1"))
    runs = 0
    while await state(world, driver) == "ACTIVE":
        (trial,) = await legs(world, driver, 1)
        await fail(trial)
        runs += 1
        rows = await world.rows("SELECT state, run_count FROM trials")
        failed = [row["run_count"] for row in rows if row["state"] == "ERROR"]
        assert failed == [2] * len(failed)
        assert (len(failed) == 3) == (await state(world, driver) == "ERROR")
    assert runs >= 6


@pytest.mark.parametrize("group", ["training", "validation", "mine", "gpu"])
async def test_one_report_is_enough_to_go_on(world: World, group: str) -> None:
    await world.register(slots=1)
    driver = await world.started(THREE)
    (trial,) = await legs(world, driver, 1)
    ok(await trial.started())
    report = {"group": group, "steps_completed": 1, "metrics": {"x": 1.0}}
    body = {"run_id": 1, "stream": str(uuid.uuid4()), "seq": 1, "reports": [report]}
    ok(await trial.client.post(f"/api/v1/trials/{trial.id}/metrics/batch", json=body))
    ok(await trial.exited(exit_code=1))
    await fail_in_turn(world, driver, 2)
    if group == "gpu":  # the profiler's: it reports regardless of the script
        assert await state(world, driver) == "ERROR"
        return
    await fail_in_turn(world, driver, 2)
    assert await state(world, driver) == "ACTIVE"


async def test_a_completed_operation_is_a_report(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started(THREE)
    (trial,) = await legs(world, driver, 1)
    ok(await trial.started())
    ok(await trial.complete(8, 0.5))
    ok(await trial.exited(exit_code=1))
    await fail_in_turn(world, driver, 3)
    assert await state(world, driver) == "ACTIVE"


async def test_a_trial_that_completes_begins_the_row_again_and_a_killed_one_does_not(
    world: World,
) -> None:
    await world.register(slots=1)
    driver = await world.started(THREE)
    await fail_in_turn(world, driver, 2)
    (trial,) = await legs(world, driver, 1)
    ok(await trial.started())
    ok(await trial.early_exit("EXITED_REASON_INVALID_HP"))
    ok(await trial.exited(exit_code=1))
    await fail_in_turn(world, driver, 2)
    (trial,) = await legs(world, driver, 1)
    ok(await trial.started())
    ok(await world.user.post(f"/api/v1/trials/{trial.id}/kill"))
    ok(await trial.exited(exit_code=None, signal=9))
    assert (await world.trial(trial.id))["state"] == "CANCELED"
    assert await state(world, driver) == "ACTIVE"
    await fail_in_turn(world, driver, 1)
    assert await state(world, driver) == "ERROR"


async def test_null_means_no_limit(world: World) -> None:
    await world.register(slots=1)
    text = THREE.replace("max_failures: 3", "max_failures: null").replace("s: 50", "s: 12")
    driver = await world.started(text)
    await fail_in_turn(world, driver, 12)
    assert await driver.drive() == "ERROR"
    experiment = await world.experiment(driver.experiment_id)
    assert experiment["reason"].startswith("all 12 trials failed; the last, trial ")


async def test_ten_is_the_default(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started(THREE.replace("max_failures: 3\n", ""))
    await fail_in_turn(world, driver, 9)
    assert await state(world, driver) == "ACTIVE"
    await fail_in_turn(world, driver, 1)
    assert await state(world, driver) == "ERROR"


async def test_rows_without_the_field_have_no_limit(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started(THREE)
    await world.rows("UPDATE experiments SET config = config - 'max_failures' RETURNING id")
    await fail_in_turn(world, driver, 4)
    assert await state(world, driver) == "ACTIVE"


async def test_continued_it_counts_from_zero(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started(THREE)
    before = await fail_in_turn(world, driver, 3)
    assert await state(world, driver) == "ERROR"
    refused = await world.act(driver.experiment_id, "activate")
    assert refused.status_code == 409
    ok(await go_on(world, driver.experiment_id))
    again = Driver(world, driver.experiment_id)
    await again.attach()
    assert await fail_in_turn(world, again, 2) == before[:2]
    assert await state(world, again) == "ACTIVE"
    assert await fail_in_turn(world, again, 1) == before[2:]
    assert await state(world, again) == "ERROR"
    ok(await go_on(world, driver.experiment_id))
    last = Driver(world, driver.experiment_id)
    await last.attach()
    (trial,) = await legs(world, last, 1)
    ok(await trial.started())
    ok(await trial.complete(8, 0.5))
    ok(await trial.exited())
    assert (await world.trial(trial.id))["state"] == "COMPLETED"
    await fail_in_turn(world, last, 3)
    assert await state(world, last) == "ACTIVE"


async def test_a_paused_search_too(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started(THREE)
    await fail_in_turn(world, driver, 2)
    (trial,) = await legs(world, driver, 1)
    ok(await trial.started())
    ok(await world.act(driver.experiment_id, "pause"))
    ok(await trial.exited(exit_code=1))
    assert await state(world, driver) == "ERROR"


async def test_a_custom_search(world: World) -> None:
    await world.register(slots=1)
    config = CUSTOM.replace("max_restarts: 1", "max_restarts: 0\nmax_failures: 2")
    search = Search(world, await world.submit(config))
    await search.attach()
    operations: list[Any] = [step for name in (A, B, C) for step in (create(name), train(name, 4))]
    ok(await search.answer(1, *operations))
    await fail(await world.launched(), "ValueError: no")
    assert await search.state() == "ACTIVE"
    await fail(await world.launched(), "KeyError: 'lr'")
    assert await search.state() == "ERROR"
    reason = (await world.experiment(search.id))["reason"]
    assert reason.startswith(
        "2 trials in a row failed before any trial reported a metric, the last, "
    )
    assert "KeyError: 'lr'" in reason
    ended = [{"id": -1, "experimentInactive": {"experimentState": "STATE_ERROR"}}]
    assert await search.events() == ended
    assert not (await world.work())["launch"]
