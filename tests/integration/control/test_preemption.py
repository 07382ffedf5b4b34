"""The loop reads the running allocations and stops the less important ones: decided once, carried out
once."""

from __future__ import annotations

from typing import Any

import pytest

from determined.common.cluster_config import ClusterConfig
from determined_service.lifecycle import allocations as allocating
from determined_service.loops.reconciler import Reconciler
from determined_service.scheduling.placement import schedule_once
from determined_service.state.change import Change, changing
from tests.integration.control.test_queue import configure, snapshot
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import CONFIG, Driver, Trial, World, ok

PREEMPTING = {"type": "priority", "preemption": True}


def single(priority: int, slots: int = 1) -> str:
    return SINGLE + f"resources: {{priority: {priority}, slots_per_trial: {slots}}}\n"


async def run(world: World, config: str) -> tuple[Driver, Trial]:
    driver = await world.started(config)
    trial = await world.launched()
    ok(await trial.started())
    return driver, trial


async def stop(trial: Trial) -> None:
    """It obeys the preemption signal."""
    assert await trial.preempted(5)
    await trial.acknowledge()
    ok(await trial.exited())


async def stopping(world: World) -> list[dict[str, Any]]:
    return await world.rows(
        "SELECT id, stopping_for FROM allocations WHERE preempt_requested_at IS NOT NULL"
        " AND state <> 'TERMINATED' ORDER BY id"
    )


@pytest.fixture(autouse=True)
async def preempting(world: World) -> None:
    await configure(world, PREEMPTING)


async def test_a_stopped_request_goes_on_in_its_old_place(world: World) -> None:
    await world.register(slots=1)
    low, victim = await run(world, single(60))
    await world.started(single(60))  # waits behind it
    high = await world.started(single(10))
    assert await victim.preempted(5)
    (asked,) = await stopping(world)
    (wanted,) = await world.rows(
        "SELECT id, trial_id FROM allocations WHERE experiment_id = :id", id=high.experiment_id
    )
    assert asked == {"id": victim.allocation_id, "stopping_for": wanted["id"]}
    found = ok(await world.user.get(f"/api/v1/experiments/{high.experiment_id}/explanation"))
    assert "agent a1 frees 1 slot, which is held by what was asked to stop" in str(found["waiting"])
    found = ok(await world.user.get(f"/api/v1/experiments/{low.experiment_id}/explanation"))
    assert f"so that trial {wanted['trial_id']} gets its slots" in str(found["waiting"])
    await stop(victim)
    (leg,) = await world.rows(
        "SELECT state, reason FROM legs WHERE task_id = :id", id=victim.spec["task_id"]
    )
    assert leg == {"state": "PREEMPTED", "reason": f"preempted: for trial {wanted['trial_id']}"}
    first, again = await world.rows(
        "SELECT requested_at, in_line_since FROM allocations WHERE trial_id = :id ORDER BY run_id",
        id=victim.id,
    )
    assert again["in_line_since"] == first["requested_at"]
    important = await world.launched()
    assert important.id == wanted["trial_id"]
    await important.run_to_end()
    second = await world.launched()
    assert (second.id, second.spec["run_id"]) == (victim.id, 2)
    assert (await world.trial(victim.id))["restarts"] == 0


async def test_nothing_is_stopped_where_the_pool_does_not_preempt(world: World) -> None:
    await configure(world, {"type": "priority"})
    await world.register(slots=1)
    _, trial = await run(world, single(60))
    await world.started(single(10))
    await schedule_once(world.app.state.db, world.app.state.snapshots)
    assert not await trial.preempted()


async def test_a_service_that_dies_before_the_commit_has_stopped_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.register(slots=1)
    _, victim = await run(world, single(60))
    died = False
    flush = Change.flush

    async def dies(self: Change) -> None:
        nonlocal died
        if not died and any(topic == f"allocation:{victim.allocation_id}" for topic in self.topics):
            died = True
            raise RuntimeError("killed here")
        await flush(self)

    monkeypatch.setattr(Change, "flush", dies)
    await configure(world, {"type": "priority"})
    await world.started(single(10))
    await schedule_once(world.app.state.db, world.app.state.snapshots)
    # No notification is sent, so that the sleeping loop does not decide first.
    world.app.state.settings.put_in_force(
        ClusterConfig.model_validate({"resource_manager": {"scheduler": PREEMPTING}})
    )
    db, snapshots = world.app.state.db, world.app.state.snapshots
    with pytest.raises(RuntimeError):
        await schedule_once(db, snapshots)
    assert await stopping(world) == []
    assert len((await schedule_once(db, snapshots)).preemptions) == 1
    assert (await schedule_once(db, snapshots)).preemptions == ()
    assert await victim.preempted()


async def test_runs_that_are_being_stopped_are_left_alone(world: World) -> None:
    await world.register(slots=1)
    driver, victim = await run(world, single(60))
    ok(await world.act(driver.experiment_id, "pause"))
    async with changing(world.app.state.db) as change:
        assert not await allocating.stop_for(change, victim.allocation_id, "x")
    assert await stopping(world) == [{"id": victim.allocation_id, "stopping_for": None}]
    await stop(victim)
    assert (await world.trial(victim.id))["state"] == "PAUSED"
    async with changing(world.app.state.db) as change:
        assert not await allocating.stop_for(change, victim.allocation_id, "x")


async def test_a_trial_that_does_not_stop_in_time_is_killed_and_waits_again(world: World) -> None:
    await world.register(slots=1)
    _, victim = await run(world, single(60))
    await world.started(single(10))
    assert await victim.preempted(5)
    await world.rows(
        "UPDATE allocations SET preempt_requested_at = now() - interval '2 h'"
        " WHERE preempt_requested_at IS NOT NULL RETURNING id"
    )
    await Reconciler(world.app.state.db, None, 30.0).run_pass()
    assert victim.allocation_id in (await world.work(1))["kill"]
    ok(await victim.exited(exit_code=None, signal=9))
    found = await world.trial(victim.id)
    assert (found["state"], found["restarts"], found["run_count"]) == ("ACTIVE", 0, 2)


async def test_lowering_max_slots_stops_trials_above_it(world: World) -> None:
    await configure(world, {"type": "round_robin"})
    await world.register(slots=4)
    driver = await world.started(CONFIG)
    trials = [Trial(world, spec) for spec in (await world.both())["launch"]]
    for trial in trials:
        ok(await trial.started())
    path = f"/api/v1/experiments/{driver.experiment_id}"
    ok(await world.user.patch(path, json={"resources": {"maxSlots": 1}}))
    last = max(trials, key=lambda one: one.id)
    assert await last.preempted(5)
    assert await stopping(world) == [{"id": last.allocation_id, "stopping_for": last.allocation_id}]
    await stop(last)
    assert (await world.work(0.2))["launch"] == []
    (waiting,) = (await snapshot(world)).requests
    assert waiting.max_slots == 1
    ok(await world.user.patch(path, json={"resources": {"maxSlots": None}}))
    again = await world.launched()
    assert (again.id, again.spec["run_id"]) == (last.id, 2)
    (leg,) = await world.rows("SELECT reason FROM legs WHERE state = 'PREEMPTED'")
    assert "max_slots" in leg["reason"]


async def test_a_change_of_priority_takes_effect_at_once(world: World) -> None:
    await world.register(slots=1)
    _, victim = await run(world, single(42))
    waiting = await world.started(SINGLE)
    assert (await schedule_once(world.app.state.db, world.app.state.snapshots)).preemptions == ()
    path = f"/api/v1/experiments/{waiting.experiment_id}"
    answer = ok(await world.user.patch(path, json={"resources": {"priority": 5}}))
    assert answer["experiment"]["config"]["resources"]["priority"] == 5
    assert await victim.preempted(5)


async def test_a_pool_change_saves_and_goes_on_there(world: World) -> None:
    await configure(world, PREEMPTING, "other")
    await world.register(slots=1)
    driver = await world.started(CONFIG)
    trial = await world.launched()
    ok(await trial.started())
    await world.register(slots=1, agent_id="a2", pool="other")
    update = {"jobId": str(driver.experiment_id), "resourcePool": "other"}
    answer = await world.user.post("/api/v1/job-queues", json={"updates": [update]})
    assert ok(answer) == {"remarks": []}
    # What waited waits there, and is served at once.
    other = await world.launched("a2")
    assert other.id != trial.id
    await stop(trial)
    await other.run_to_end()
    again = await world.launched("a2")
    assert (again.id, again.spec["run_id"]) == (trial.id, 2)
    assert (await world.trial(trial.id))["restarts"] == 0


async def test_no_move_to_a_pool_that_is_too_narrow(world: World) -> None:
    await configure(world, PREEMPTING, "narrow")
    await world.register(slots=2)
    driver = await world.started(single(42, slots=2))
    await world.register(slots=1, agent_id="a2", pool="narrow")
    for pool, words in (
        ("narrow", "agents and their slots: a2 1"),
        ("none", "there is no resource pool"),
    ):
        update = {"jobId": str(driver.experiment_id), "resourcePool": pool}
        answer = await world.user.post("/api/v1/job-queues", json={"updates": [update]})
        assert answer.status_code == 400
        assert words in answer.text
    assert (await world.experiment(driver.experiment_id))["resource_pool"] == "default"
