"""The job queue by the REST API: its list, its order, changes of both."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from tests.integration.control.test_preemption import PREEMPTING, run, single
from tests.integration.control.test_queue import configure
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import CONFIG, Driver, Trial, World, ok

QUEUE = "/api/v1/job-queues"


async def jobs(world: World, **params: Any) -> list[dict[str, Any]]:
    world.app.state.queue._kept_until = 0.0
    answer = ok(await world.user.get(f"{QUEUE}-v2", params=params))
    assert answer["pagination"]["total"] >= len(answer["jobs"])
    return [one["full"] for one in answer["jobs"]]


async def order(world: World) -> list[int]:
    return [int(job["entityId"]) for job in await jobs(world)]


async def update(world: World, *updates: dict[str, Any]) -> Any:
    return await world.user.post(QUEUE, json={"updates": list(updates)})


async def waiting(world: World, count: int) -> list[int]:
    """Experiments that wait, for want of an agent."""
    return [(await world.started(SINGLE)).experiment_id for _ in range(count)]


async def test_the_list(world: World) -> None:
    await world.register(slots=1)
    driver, _ = await run(world, CONFIG + "resources: {priority: 10, weight: 2}\n")
    later = await world.started(SINGLE)
    first, second = await jobs(world)
    assert first | {"submissionTime": "", "jobId": ""} == {
        "jobId": "",
        "type": "TYPE_EXPERIMENT",
        "entityId": str(driver.experiment_id),
        "name": "scripted",
        "resourcePool": "default",
        "submissionTime": "",
        "username": "determined",
        "userId": first["userId"],
        "workspaceId": 1,
        "isPreemptible": True,
        "priority": 10,
        "higherPriorityFirst": False,
        "weight": 2.0,
        "progress": first["progress"],
        "requestedSlots": 2,
        "allocatedSlots": 1,
        "summary": {"state": "STATE_SCHEDULED", "jobsAhead": 0},
    }
    assert int(second["entityId"]) == later.experiment_id
    # The other trial of the first experiment waits before it.
    assert second["summary"] == {"state": "STATE_QUEUED", "jobsAhead": 1}
    assert [job["entityId"] for job in await jobs(world, orderBy="ORDER_BY_DESC")] == [
        second["entityId"],
        first["entityId"],
    ]
    assert [one["entityId"] for one in await jobs(world, states="STATE_QUEUED")] == [
        second["entityId"]
    ]
    assert await jobs(world, offset=1, limit=1) == [second]
    old = ok(await world.user.get(QUEUE, params={"resourcePool": "default"}))
    assert old["jobs"] == [first, second]
    missing = await world.user.get(QUEUE, params={"resourcePool": "none"})
    assert (missing.status_code, "allowed: default" in missing.text) == (400, True)
    await world.rows(
        "UPDATE allocations SET requested_at = assigned_at - interval '90 s'"
        " WHERE assigned_at IS NOT NULL RETURNING id"
    )
    await world.rows(
        "INSERT INTO allocations (id, task_id, run_id, state, resource_pool, slots, requested_at,"
        " assigned_at)"
        " SELECT id || day, task_id, run_id + 1, 'TERMINATED', resource_pool, 1,"
        "        assigned_at - day * interval '25 h', assigned_at - day * interval '1 day'"
        " FROM allocations, unnest(array[1, 29, 30]) day WHERE assigned_at IS NOT NULL RETURNING id"
    )
    ran = (await world.rows("SELECT max(assigned_at) AT TIME ZONE 'UTC' AS at FROM allocations"))[
        0
    ]["at"]
    days = [(ran.date() - datetime.timedelta(days=days)).isoformat() for days in (29, 1, 0)]
    stats = ok(await world.user.get(f"{QUEUE}/stats"))["results"]
    assert stats == [
        {
            "resourcePool": "default",
            "stats": {"queuedCount": 1, "scheduledCount": 1},
            "aggregates": [
                {"periodStart": day, "seconds": seconds}
                for day, seconds in zip(days, (29 * 3600.0, 3600.0, 90.0), strict=True)
            ],
        }
    ]


async def test_filled_slots_are_explained(world: World) -> None:
    await configure(world, PREEMPTING)
    await world.register(slots=2)
    await run(world, single(20))
    wide = await world.started(single(30, slots=2))  # stuck: one slot is free
    _, narrow = await run(world, single(40))
    states = {int(job["entityId"]): job["summary"]["state"] for job in await jobs(world)}
    assert states[wide.experiment_id] == "STATE_QUEUED"
    assert states[narrow.spec["experiment_id"]] == "STATE_SCHEDULED_BACKFILLED"


async def test_moves_in_the_queue(world: World) -> None:
    first, second, third = await waiting(world, 3)
    ids = {int(job["entityId"]): job["jobId"] for job in await jobs(world)}
    assert await order(world) == [first, second, third]
    ok(await update(world, {"jobId": ids[third], "aheadOf": ids[first]}))
    assert await order(world) == [third, first, second]
    ok(await update(world, {"jobId": str(third), "behindOf": str(first)}))
    assert await order(world) == [first, third, second]
    ok(await update(world, {"jobId": str(first), "behindOf": str(second)}))
    assert await order(world) == [third, second, first]
    # A new job still comes last, and the first job gets the slot.
    (fourth,) = await waiting(world, 1)
    assert await order(world) == [third, second, first, fourth]
    await world.register(slots=1)
    assert (await world.launched()).spec["experiment_id"] == third


async def test_a_move_past_another_priority_takes_it(world: World) -> None:
    low = (await world.started(single(60))).experiment_id
    high = (await world.started(single(10))).experiment_id
    assert await order(world) == [high, low]
    answer = ok(await update(world, {"jobId": str(low), "aheadOf": str(high)}))
    assert f"now has priority 10, that of experiment {high}" in answer["remarks"][0]
    assert await order(world) == [low, high]
    config = (await world.experiment(low))["config"]
    assert config["resources"]["priority"] == 10


async def test_a_batch_in_order_and_its_refusals(world: World) -> None:
    first, second = await waiting(world, 2)
    answer = await update(
        world,
        {"jobId": str(first), "priority": 50},
        {"jobId": str(second), "resourcePool": "none"},
    )
    assert answer.status_code == 400
    assert "update 2 of 2 (1 made before it)" in answer.text
    assert (await world.experiment(first))["config"]["resources"]["priority"] == 50
    for wrong, status, words in (
        ({"jobId": str(first)}, 400, "changes one of priority, weight"),
        ({"jobId": str(first), "priority": 1, "weight": 2}, 400, "not priority, weight"),
        ({"jobId": str(first), "priority": 100}, 400, "priority"),
        ({"jobId": "99", "priority": 1}, 404, "job 99 does not exist"),
        ({"jobId": "x", "priority": 1}, 404, "its experiment's number"),
        ({"jobId": str(first), "aheadOf": str(first)}, 400, "itself"),
    ):
        refused = await update(world, wrong)
        assert (refused.status_code, words in refused.text) == (status, True), refused.text
    ok(await world.act(first, "cancel"))
    over = await update(world, {"jobId": str(first), "priority": 1})
    assert (over.status_code, "only one that has not ended is in a queue" in over.text) == (
        409,
        True,
    )


async def test_max_slots_below_a_trial_is_refused(world: World) -> None:
    driver = await world.started(single(42, slots=2))
    path = f"/api/v1/experiments/{driver.experiment_id}"
    refused = await world.user.patch(path, json={"resources": {"maxSlots": 1}})
    assert (refused.status_code, "must be at least 2" in refused.text) == (400, True)
    answer = ok(await world.user.patch(path, json={"resources": {"weight": 3}}))
    assert "resources.weight (3) is stored but ignored" in answer["remarks"][0]


async def test_explanations_and_forecasts(world: World) -> None:
    await world.register(slots=2)
    driver = await world.started(CONFIG)
    launched = [Trial(world, spec) for spec in (await world.both())["launch"]]
    first, second = sorted(launched, key=lambda trial: trial.id)
    for trial in (first, second):
        ok(await trial.started())
    narrow = await world.started(SINGLE)
    wide = await world.started(single(42, slots=2))

    async def explained(experiment_id: int) -> list[dict[str, Any]]:
        world.app.state.queue._kept_until = 0.0
        found = ok(await world.user.get(f"{QUEUE}/{experiment_id}/explanation"))
        assert found["job"]["entityId"] == str(experiment_id)
        return list(found["waiting"])

    (one,) = await explained(narrow.experiment_id)
    assert one["reason"] == "wants 1 slot of resource pool 'default': 0 of 2 are free"
    assert one["forecast"] == f"starts when one of the trials {first.id}, {second.id} ends"
    (one,) = await explained(wide.experiment_id)
    assert "1 ahead of it in the queue" in one["reason"]
    assert one["forecast"] is None
    shown = await jobs(world, reasons=True)
    assert {job["entityId"]: job["reason"] for job in shown} == {
        str(driver.experiment_id): None,
        str(narrow.experiment_id): "wants 1 slot of resource pool 'default': 0 of 2 are free",
        str(wide.experiment_id): one["reason"],
    }
    assert "reason" not in (await jobs(world))[0]
    ok(await world.act(narrow.experiment_id, "kill"))
    (one,) = await explained(wide.experiment_id)
    assert one["forecast"] == (
        f"starts when trials {first.id}, {second.id} have ended, if they end in the order in which they began"
    )
    assert await explained(driver.experiment_id) == []
    missing = await world.user.get(f"{QUEUE}/{narrow.experiment_id}/explanation")
    assert (missing.status_code, "is in no queue" in missing.text) == (404, True)


@pytest.mark.parametrize("path", ["/api/v1/job-queues-v2", QUEUE, f"{QUEUE}/stats"])
async def test_an_empty_queue(world: World, path: str) -> None:
    ok(await world.user.get(path))
    await Driver(world, await world.submit(SINGLE, activate=False)).attach()
    assert await jobs(world) == []
