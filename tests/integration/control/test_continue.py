"""Experiments that have ended and go on in place."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.integration.control.test_exits import begin
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import CONFIG, Driver, Trial, World, ok
from tests.waiting import until_async

FOUR = CONFIG.replace("max_restarts: 1", "max_restarts: 0")
ASHA = FOUR.replace(
    "{name: random, metric: loss, max_length: 8, max_trials: 4, max_concurrent_trials: 2}",
    "{name: async_halving, metric: loss, max_length: {batches: 8}, max_trials: 4, num_rungs: 2, divisor: 4,"
    " max_concurrent_trials: 2}",
)
REPORTS = SINGLE.replace(", max_length: 8", "")


async def go_on(world: World, experiment_id: int, config: str | None = None) -> httpx.Response:
    body = {"id": experiment_id, "overrideConfig": config}
    return await world.user.post("/api/v1/experiments/continue", json=body)


async def end(world: World, driver: Driver) -> str:
    """The driver goes on until the experiment ends, with nothing running."""
    for _ in range(20):
        if driver.state in ("COMPLETED", "CANCELED", "ERROR"):
            return driver.state
        await driver.step(0.2)
    return driver.state


async def trials(world: World) -> dict[str, dict[str, Any]]:
    rows = await world.rows("SELECT * FROM trials ORDER BY id")
    return {row["request_id"]: row for row in rows}


async def test_a_single_trial_goes_on_from_its_checkpoint(world: World) -> None:
    driver, trial = await begin(world)
    checkpoint = "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11"
    body = {"uuid": checkpoint, "resources": {}, "metadata": {"steps_completed": 8}}
    ok(await trial.client.post("/api/v1/checkpoints", json=body))
    ok(await trial.complete(8, 0.5))
    ok(await trial.exited())
    assert await end(world, driver) == "COMPLETED"
    before = await world.trial(trial.id)
    answer = ok(await go_on(world, driver.experiment_id, "searcher: {max_length: 20}"))
    assert answer["experiment"]["state"] == "STATE_QUEUED"
    assert answer["experiment"]["config"]["searcher"]["max_length"] == 20
    # The driver of before drives no more.
    refused = await world.agent.get(
        f"{driver.path}/events", params={"driver": str(driver.driver), "after": 0}
    )
    assert refused.status_code == 409
    again = Driver(world, driver.experiment_id)
    await again.attach()
    leg = await world.launched()
    assert (leg.id, leg.spec["run_id"]) == (trial.id, 2)
    assert leg.spec["latest_checkpoint"] == checkpoint
    ok(await leg.started())
    assert (await leg.operation())["op"]["validateAfter"]["length"] == "20"
    ok(await leg.complete(20, 0.25))
    ok(await leg.exited())
    assert await end(world, again) == "COMPLETED"
    after = await world.trial(trial.id)
    assert (after["state"], after["restarts"]) == ("COMPLETED", 0)
    assert after["request_id"] == before["request_id"]
    assert len(await world.rows("SELECT 1 FROM trials")) == 1


async def test_restarts_begin_at_zero(world: World) -> None:
    driver, trial = await begin(world, SINGLE)
    for _ in range(2):
        ok(await trial.exited(exit_code=1))
        if (await world.trial(trial.id))["state"] == "ERROR":
            break
        trial = await world.launched()
        ok(await trial.started())
    assert await end(world, driver) == "ERROR"
    ok(await go_on(world, driver.experiment_id))
    again = Driver(world, driver.experiment_id)
    await again.attach()
    leg = await world.launched()
    ok(await leg.started())
    ok(await leg.exited(exit_code=1))
    found = await world.trial(trial.id)
    assert (found["state"], found["restarts"]) == ("ACTIVE", 1)


async def test_a_field_that_the_search_lacks_is_a_reason(world: World) -> None:
    """Not a fault: releases before this one stored such configurations."""
    driver, trial = await begin(world, SINGLE)
    ok(await world.act(driver.experiment_id, "kill"))
    ok(await trial.exited(exit_code=137))
    assert await end(world, driver) == "CANCELED"
    await world.rows("UPDATE experiments SET config = config - 'reproducibility' RETURNING id")
    refused = await go_on(world, driver.experiment_id)
    assert refused.status_code == 409
    assert "cannot be continued: reproducibility.experiment_seed" in refused.text
    assert (await world.trial(trial.id))["state"] == "CANCELED"


async def test_in_a_search_only_unfinished_trials_run_again(world: World) -> None:
    """Of two trials that ran one completed and one failed; then the experiment was killed."""
    await world.register(slots=2)
    driver = await world.started(FOUR)
    good, bad = (Trial(world, spec) for spec in (await world.both())["launch"])
    for trial in (good, bad):
        ok(await trial.started())
    ok(await good.complete(8, 0.5))
    ok(await good.exited())
    ok(await bad.exited(exit_code=1))
    ok(await world.act(driver.experiment_id, "kill"))
    await world.work()
    before = await trials(world)
    assert {row["state"] for row in before.values()} >= {"COMPLETED", "ERROR"}
    # The request of Determined's `det` without changes.
    ok(await go_on(world, driver.experiment_id, "{}\n"))
    again = Driver(world, driver.experiment_id)
    await again.attach()
    ran = []
    world.running.clear()
    while again.state not in ("COMPLETED", "CANCELED", "ERROR"):
        for spec in (await world.work(0.2))["launch"]:
            leg = Trial(world, spec)
            ran.append(leg.id)
            await leg.started()
            ok(await leg.complete(8, 0.25))
            ok(await leg.exited())
        await again.step(0.2)
    assert again.state == "COMPLETED"
    after = await trials(world)
    # The search's four trials: each completed, the successful one without running again.
    assert len(after) == 4
    assert {row["state"] for row in after.values()} == {"COMPLETED"}
    assert before.keys() <= after.keys()
    assert good.id not in ran
    assert sorted(ran) == sorted(row["id"] for row in after.values() if row["id"] != good.id)
    reported = [e for e in await world.events(driver.experiment_id) if "metric" in e]
    metrics = {event["request_id"]: event["metric"] for event in reported}
    assert len(reported) == len(metrics) == 4
    assert next(metrics[r] for r, row in after.items() if row["id"] == good.id) == 0.5
    refused = await go_on(world, driver.experiment_id)
    assert refused.status_code == 409
    assert "all 4 trials" in refused.text


async def test_rungs_that_were_reached_are_not_trained_again(world: World) -> None:
    await world.register(slots=2)
    driver = await world.started(ASHA)
    asked: list[tuple[int, int]] = []

    async def train(driver: Driver, stop_at: int | None) -> None:
        while driver.state not in ("COMPLETED", "CANCELED", "ERROR"):
            for spec in (await world.work(0.1))["launch"]:
                leg = Trial(world, spec)
                await leg.started()
                length = (await leg.operation())["op"]["validateAfter"]["length"]
                asked.append((leg.id, int(length)))
                ok(await leg.complete(int(length), leg.id / 10))
                await leg.acknowledge()
                ok(await leg.exited())
            if stop_at is not None and len(asked) >= stop_at:
                return
            await driver.step(0.1)

    await train(driver, stop_at=2)
    ok(await world.act(driver.experiment_id, "kill"))
    ok(await go_on(world, driver.experiment_id))
    again = Driver(world, driver.experiment_id)
    await again.attach()
    world.running.clear()
    await train(again, stop_at=None)
    assert again.state == "COMPLETED"
    assert len(asked) == len(set(asked))
    assert len(await trials(world)) == 4
    best, longest = max(asked, key=lambda one: one[1])
    assert longest == 8
    assert best in {trial_id for trial_id, _ in asked[:2]}
    # The best one ran again, though not at once. Others that have run before keep their one task.
    for trial_id, _ in asked:
        shown = ok(await world.user.get(f"/api/v1/trials/{trial_id}"))["trial"]
        base = f"{driver.experiment_id}.{shown['requestId']}"
        expected = [base, f"{base}-1"] if trial_id == best else [base]
        assert shown["taskIds"] == expected


async def test_a_trial_that_decides_itself_how_long_it_trains(world: World) -> None:
    driver, trial = await begin(world, REPORTS)
    ok(await world.act(driver.experiment_id, "kill"))
    ok(await trial.exited(exit_code=None, signal=9))
    assert await end(world, driver) == "CANCELED"
    ok(await go_on(world, driver.experiment_id))
    again = Driver(world, driver.experiment_id)
    await again.attach()
    leg = await world.launched()
    assert (leg.id, leg.spec["run_id"]) == (trial.id, 2)
    ok(await leg.started())
    ok(await leg.exited())
    assert await end(world, again) == "COMPLETED"


async def test_a_request_that_is_sent_twice_is_one(world: World) -> None:
    driver, trial = await begin(world)
    ok(await world.act(driver.experiment_id, "kill"))
    ok(await trial.exited(exit_code=None, signal=9))
    ok(await go_on(world, driver.experiment_id))
    twice = await go_on(world, driver.experiment_id)
    assert twice.status_code == 409
    assert "only an experiment that has ended" in twice.text


@pytest.mark.parametrize(
    ("config", "override", "text"),
    [
        (SINGLE, "searcher: {name: random}", "keeps its search method"),
        (SINGLE, "workspace: other", "workspace: cannot be changed"),
        (SINGLE, "max_restart: 3", "max_restart"),
        (FOUR, "max_restarts: 3", "only the configuration of a single trial"),
    ],
)
async def test_unchangeable_fields(world: World, config: str, override: str, text: str) -> None:
    await world.register(slots=2)
    driver = await world.started(config)
    # Whether a leg is there already when the kill comes is the scheduler's business.
    launched = (await world.work())["launch"]
    ok(await world.act(driver.experiment_id, "kill"))

    async def is_canceled() -> bool:
        launched.extend((await world.work())["launch"])
        while launched:
            ok(await Trial(world, launched.pop()).exited(exit_code=None, signal=9))
        return (await world.experiment(driver.experiment_id))["state"] == "CANCELED"

    await until_async("the experiment canceled", is_canceled)
    refused = await go_on(world, driver.experiment_id, override)
    assert refused.status_code == 400
    assert text in refused.text
    assert (await world.experiment(driver.experiment_id))["state"] == "CANCELED"


async def test_a_fork_has_the_model_definition_of_its_parent(world: World) -> None:
    file = {"path": "train.py", "type": 48, "content": "cHJpbnQoMSk=", "mode": 0o644}
    parent = await world.submit(SINGLE, modelDefinition=[file])
    child = await world.submit(SINGLE, parentId=parent)
    rows = {row["id"]: row for row in await world.rows("SELECT * FROM experiments")}
    assert rows[child]["parent_id"] == parent
    assert rows[child]["model_def_hash"] == rows[parent]["model_def_hash"] is not None
    shown = ok(await world.user.get(f"/api/v1/experiments/{child}"))["experiment"]
    assert shown["forkedFrom"] == parent
    other = await world.submit(SINGLE, parentId=parent, modelDefinition=[file | {"path": "b.py"}])
    found = await world.experiment(other)
    assert found["model_def_hash"] != rows[parent]["model_def_hash"]
