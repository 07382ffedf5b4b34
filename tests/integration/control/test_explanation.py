"""The explanation of an experiment's state."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.control.test_exits import begin
from tests.integration.control.test_search_path import ASHA, SINGLE
from tests.integration.control.world import CONFIG, World, ok


async def explain(world: World, experiment_id: int) -> dict[str, Any]:
    found: dict[str, Any] = ok(
        await world.user.get(f"/api/v1/experiments/{experiment_id}/explanation")
    )
    return found


async def test_waiting_for_a_flow_then_for_an_agent(world: World) -> None:
    experiment = await world.submit(SINGLE)
    item, trial = (await explain(world, experiment))["waiting"]
    assert item["trialId"] is None
    assert trial["reason"].endswith(
        "which has no agent that is alive and enabled (`det agent start --pool default` starts one)"
    )
    assert "has not been given its run" in item["reason"] or "no flow drives" in item["reason"]
    driver = await world.started()
    (item,) = (await explain(world, driver.experiment_id))["waiting"][-1:]
    assert item["reason"].endswith(
        "which has no agent that is alive and enabled (`det agent start --pool default` starts one)"
    )
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


async def test_a_pause_tells_its_user_and_time(world: World) -> None:
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
        "UPDATE kept_runs SET seen_at = now() - interval '1 minute' RETURNING 1 AS one"
    )
    whole, between = (await explain(world, driver.experiment_id))["waiting"][:2]
    assert "has not been heard of for 60 s" in whole["reason"]
    assert between["trialId"] == trial.id
    assert "the searcher decides" in between["reason"]


async def test_an_experiment_that_does_not_exist(world: World) -> None:
    answer = await world.user.get("/api/v1/experiments/99/explanation")
    assert answer.status_code == 404


async def test_of_a_large_experiment_the_newest_legs_and_the_first_that_wait(world: World) -> None:
    driver = await world.started(CONFIG)
    await world.register(slots=1)
    first = await world.launched()
    await first.run_to_end()
    while not await driver.step(5):
        pass
    whole = await explain(world, driver.experiment_id)
    assert whole["waitingTotal"] == len(whole["waiting"])
    path = f"/api/v1/experiments/{driver.experiment_id}/explanation"
    part = ok(await world.user.get(path, params={"limit": 1}))
    assert part["waitingTotal"] == whole["waitingTotal"]
    assert part["waiting"] == whole["waiting"][:1]
    newest = max(row["id"] for row in await world.rows("SELECT id FROM trials"))
    assert whole["legs"][0]["trialId"] == first.id
    assert {leg["trialId"] for leg in part["legs"]} <= {newest}
    assert (await world.user.get(path, params={"limit": 0})).status_code == 400


@pytest.mark.parametrize(
    ("smaller", "best"), [("true", 0.25), ("false", 0.75)], ids=["smaller", "larger"]
)
async def test_the_best_trial_is_never_one_without_a_number(
    world: World, smaller: str, best: float
) -> None:
    config = CONFIG.replace("metric: loss", f"metric: loss, smaller_is_better: {smaller}")
    experiment = await world.submit(config.replace("max_concurrent_trials: 2", ""), activate=False)
    trials = await world.rows("SELECT id FROM trials ORDER BY id")
    values = ["NaN", 0.75, 0.25, None]
    for row, value in zip(trials, values, strict=True):
        await world.rows(
            "UPDATE trials SET searcher_metric_value = :value WHERE id = :id RETURNING id",
            value=None if value is None else float(value),
            id=row["id"],
        )
    found = ok(await world.user.get(f"/api/v1/experiments/{experiment}"))["experiment"]
    assert found["bestTrialId"] == trials[values.index(best)]["id"]
    assert found["bestTrialSearcherMetric"] == best
    by_metric = {"sortBy": "SORT_BY_SEARCHER_METRIC_VAL", "orderBy": "ORDER_BY_DESC"}
    (listed,) = ok(await world.user.get("/api/v1/experiments", params=by_metric))["experiments"]
    assert listed["bestTrialId"] == found["bestTrialId"]
    pages = [
        ok(
            await world.user.get(
                f"/api/v1/experiments/{experiment}/trials", params={"offset": at, "limit": 1}
            )
        )["trials"]
        for at in (0, 1, 2, -1)
    ]
    assert [page[0]["id"] for page in pages] == [trials[at]["id"] for at in (0, 1, 2, -1)]
