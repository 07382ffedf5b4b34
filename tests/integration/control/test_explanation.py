"""Why an experiment is as it is."""

from __future__ import annotations

from typing import Any

from tests.integration.control.test_exits import begin
from tests.integration.control.test_search_path import ASHA, SINGLE
from tests.integration.control.world import World, ok


async def explain(world: World, experiment_id: int) -> dict[str, Any]:
    found: dict[str, Any] = ok(
        await world.user.get(f"/api/v1/experiments/{experiment_id}/explanation")
    )
    return found


async def test_waiting_for_a_flow_then_for_an_agent(world: World) -> None:
    experiment = await world.submit(SINGLE)
    item, trial = (await explain(world, experiment))["waiting"]
    assert item["trialId"] is None
    assert trial["reason"].endswith("which has no agent that is alive and enabled")
    assert "has not been given its run" in item["reason"] or "no flow drives" in item["reason"]
    driver = await world.started()
    (item,) = (await explain(world, driver.experiment_id))["waiting"][-1:]
    assert item["reason"].endswith("which has no agent that is alive and enabled")
    assert (item["resourcePool"], item["slotsWanted"], item["slotsFree"]) == ("default", 1, 0)


async def test_each_leg_has_its_reason(world: World) -> None:
    driver, trial = await begin(world)
    ok(await trial.exited(exit_code=3))
    second = await world.launched()
    ok(await second.started())
    found = await explain(world, driver.experiment_id)
    first, running = found["legs"]
    assert (first["trialId"], first["runId"], first["state"]) == (trial.id, 1, "STATE_ERROR")
    assert (first["reason"], first["exitCode"]) == ("process exited with code 3", 3)
    assert first["agentId"] == running["agentId"] is not None
    assert (running["runId"], running["state"], running["endTime"]) == (2, "STATE_RUNNING", None)


async def test_paused_by_whom_and_when(world: World) -> None:
    driver, trial = await begin(world)
    ok(await world.act(driver.experiment_id, "pause"))
    whole, process = (await explain(world, driver.experiment_id))["waiting"]
    assert whole["reason"].startswith("paused by determined at 20")
    assert process["trialId"] == trial.id
    assert "asked to save a checkpoint" in process["reason"]
    ok(await world.act(driver.experiment_id, "activate"))
    assert (await world.experiment(driver.experiment_id))["reason"] is None
    created = await world.submit(SINGLE, activate=False)
    (item,) = (await explain(world, created))["waiting"]
    assert item["reason"] == "it was created paused"


async def test_a_silent_driver_and_a_searcher_that_decides(world: World) -> None:
    driver, trial = await begin(world, ASHA)
    ok(await trial.complete(4, 0.5))
    await trial.acknowledge()
    ok(await trial.exited())
    await world.rows(
        "UPDATE searches SET driver_seen_at = now() - interval '1 minute' RETURNING 1 AS one"
    )
    whole, between = (await explain(world, driver.experiment_id))["waiting"][:2]
    assert "has not been heard of for 60 s" in whole["reason"]
    assert between["trialId"] == trial.id
    assert "the searcher decides" in between["reason"]


async def test_an_experiment_that_does_not_exist(world: World) -> None:
    answer = await world.user.get("/api/v1/experiments/99/explanation")
    assert answer.status_code == 404
