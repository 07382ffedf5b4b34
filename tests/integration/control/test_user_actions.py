"""Pause, activate, cancel, kill, archive."""

from __future__ import annotations

import asyncio

from determined_service.loops.reconciler import Reconciler
from tests.integration.control.test_exits import begin
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import Driver, World, ok
from tests.integration.service_api.flow_runs import FakeRuns, keep
from tests.waiting import TIMEOUT_S


async def test_pause_preempts_and_activate_goes_on(world: World) -> None:
    driver, trial = await begin(world)
    waiting = asyncio.create_task(trial.preempted(10))
    await asyncio.sleep(0.05)
    ok(await world.act(driver.experiment_id, "pause"))
    ok(await world.act(driver.experiment_id, "pause"))
    assert await asyncio.wait_for(waiting, TIMEOUT_S)
    await trial.acknowledge()
    ok(await trial.exited())
    assert (await world.trial(trial.id))["state"] == "PAUSED"
    assert (await world.work(0.1))["launch"] == []
    (leg,) = await world.rows("SELECT state FROM legs")
    assert leg["state"] == "PREEMPTED"
    ok(await world.act(driver.experiment_id, "activate"))
    second = await world.launched()
    assert second.spec["run_id"] == 2
    await second.run_to_end()
    assert (await world.trial(trial.id))["restarts"] == 0
    assert await driver.drive() == "COMPLETED"
    assert await world.told_prefect(trial.entity) == [
        "Pending", "Running", "Paused", "AwaitingSlots", "Pending", "Running", "Completed",
    ]  # fmt: skip


async def test_pausing_takes_waiting_trials_out_of_the_queue(world: World) -> None:
    driver = await world.started()  # no agent yet
    ok(await world.act(driver.experiment_id, "pause"))
    await world.register(slots=2)
    assert (await world.work(0.2))["launch"] == []
    ok(await world.act(driver.experiment_id, "activate"))
    assert (await world.work(5))["launch"]


async def test_created_paused_it_waits_for_activation(world: World) -> None:
    await world.register(slots=1)
    experiment = await world.submit(SINGLE, activate=False)
    assert (await world.experiment(experiment))["state"] == "PAUSED"
    wanted = "SELECT flow_run_id, settled FROM kept_runs WHERE experiment_id IS NOT NULL"
    assert await world.rows(wanted) == []
    ok(await world.act(experiment, "activate"))
    assert await world.rows(wanted) == [{"flow_run_id": None, "settled": False}]
    await Driver(world, experiment).attach()
    await world.launched()


async def test_cancel_lets_the_process_exit(world: World) -> None:
    driver, trial = await begin(world)
    ok(await world.act(driver.experiment_id, "cancel"))
    assert await trial.preempted()
    assert (await world.experiment(driver.experiment_id))["state"] == "STOPPING_CANCELED"
    await trial.acknowledge()
    ok(await trial.exited())
    assert (await world.trial(trial.id))["state"] == "CANCELED"
    assert (await driver.events(5, state="STOPPING_CANCELED")).state == "CANCELED"
    ok(await world.act(driver.experiment_id, "cancel"))  # nothing left to cancel
    late = await world.act(driver.experiment_id, "pause")
    assert late.status_code == 409
    assert "CANCELED" in late.text


async def test_cancel_before_anything_started_ends_at_once(world: World) -> None:
    driver = await world.started()
    ok(await world.act(driver.experiment_id, "cancel"))
    assert (await world.experiment(driver.experiment_id))["state"] == "CANCELED"
    trials = await world.rows("SELECT state, reason FROM trials")
    assert {trial["state"] for trial in trials} == {"CANCELED"}
    assert {trial["reason"] for trial in trials} == {"canceled by the user"}
    assert not await world.rows("SELECT 1 FROM allocations WHERE state <> 'TERMINATED'")


async def test_an_experiment_without_driver_ends_its_prefect_run(world: World) -> None:
    experiment, runs = await world.submit(SINGLE), FakeRuns("experiment")
    await keep(world.app, runs)
    ok(await world.act(experiment, "cancel"))
    runs.all_become("SCHEDULED")  # no agent has taken it
    await keep(world.app, runs)
    (told,) = runs.told
    message = f"experiment {experiment} canceled: canceled by the user"
    assert told[1:] == ("CANCELLED", "Cancelled", message)


async def test_kill_tells_the_agent_until_the_process_is_gone(world: World) -> None:
    driver, trial = await begin(world)
    waiting = asyncio.create_task(world.work(5))
    await asyncio.sleep(0.05)
    ok(await world.act(driver.experiment_id, "kill"))
    assert (await waiting)["kill"] == [trial.allocation_id]
    assert (await world.work())["kill"] == [trial.allocation_id]
    ok(await world.act(driver.experiment_id, "kill"))
    ok(await trial.exited(exit_code=None, signal=9))
    found = await world.trial(trial.id)
    assert (found["state"], found["reason"]) == ("CANCELED", "killed by the user")
    assert (await world.experiment(driver.experiment_id))["state"] == "CANCELED"


async def test_kill_between_assignment_and_start(world: World) -> None:
    await world.register(slots=1)
    driver = await world.started(SINGLE)
    for _ in range(100):
        if await world.rows("SELECT 1 FROM allocations WHERE state = 'ASSIGNED'"):
            break
        await asyncio.sleep(0.02)
    ok(await world.act(driver.experiment_id, "kill"))
    answer = await world.work(0.2)
    assert (answer["launch"], answer["kill"]) == ([], [])
    assert (await world.experiment(driver.experiment_id))["state"] == "CANCELED"


async def test_a_killed_trial_leaves_the_search_to_the_others(world: World) -> None:
    await world.register(slots=2)
    driver = await world.started()
    spec = (await world.work(5))["launch"][0]
    ok(await world.user.post(f"/api/v1/trials/{spec['trial_id']}/kill"))
    killed = (await world.work(1))["kill"]
    assert killed == [spec["allocation_id"]]
    ok(
        await world.agent.post(
            f"/internal/v1/allocations/{killed[0]}/exit", json={"signal": 9, "kind": "exited"}
        )
    )
    assert (await world.trial(spec["trial_id"]))["state"] == "CANCELED"
    reasons = [
        event.get("reason")
        for event in await world.events(driver.experiment_id)
        if event["type"] == "trial_exited_early"
    ]
    assert reasons == ["USER_CANCELED"]
    assert (await world.experiment(driver.experiment_id))["state"] == "ACTIVE"
    ok(await world.user.post(f"/api/v1/trials/{spec['trial_id']}/kill"))


async def test_only_ended_experiments_are_archived(world: World) -> None:
    experiment = await world.submit(SINGLE)
    early = await world.act(experiment, "archive")
    assert early.status_code == 409
    ok(await world.act(experiment, "kill"))
    ok(await world.act(experiment, "archive"))
    assert (await world.experiment(experiment))["archived"]
    ok(await world.act(experiment, "unarchive"))
    assert not (await world.experiment(experiment))["archived"]
    assert (await world.act(experiment + 1, "archive")).status_code == 404


async def test_a_crash_after_the_last_report_is_made_good_after_a_pause(world: World) -> None:
    driver, trial = await begin(world)
    ok(await trial.complete(8, 0.1))
    ok(await world.act(driver.experiment_id, "pause"))
    ok(await trial.exited(exit_code=1))
    assert (await world.trial(trial.id))["state"] == "PAUSED"
    ok(await world.act(driver.experiment_id, "activate"))
    second = await world.launched()
    assert (await second.operation())["completed"]
    await second.run_to_end()
    assert (await world.trial(trial.id))["state"] == "COMPLETED"


async def test_a_trial_that_waits_for_nothing_queues_again(world: World) -> None:
    driver, trial = await begin(world)
    await world.rows("UPDATE allocations SET state = 'TERMINATED', ended_at = now() RETURNING 1")
    world.running.clear()
    await Reconciler(world.app.state.db, None, 30.0).run_pass()
    assert (await world.launched()).spec["run_id"] == 2
    assert (await world.experiment(driver.experiment_id))["state"] == "ACTIVE"
    assert (await world.trial(trial.id))["run_count"] == 2
