"""The API's view of the queue, and the scheduler's reading of the tables."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from determined.common.cluster_config import ClusterConfig
from determined_service.lifecycle import configuration
from determined_service.scheduling import placement, queue
from determined_service.scheduling.placement import schedule_once
from determined_service.scheduling.priority import Priority
from determined_service.scheduling.reasons import GroupAtLimit
from determined_service.scheduling.scheduler import Decision
from determined_service.scheduling.snapshot import Request, Snapshot
from tests.integration.control.test_exits import begin
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import CONFIG, Driver, World, ok


async def configure(world: World, scheduler: dict[str, Any], *others: str) -> None:
    """The pool "default" has this scheduler, as have the others."""
    pools = [{"pool_name": name} for name in ("default", *others)]
    given = {"resource_manager": {"scheduler": scheduler}, "resource_pools": pools}
    config = ClusterConfig.model_validate(given)
    settings = world.app.state.settings
    await configuration.put(world.app.state.db, config, settings)
    settings.put_in_force(config)


NO_SLOTS = SINGLE + "resources: {slots_per_trial: 0}\n"
UNHEEDED = "resources: {priority: 7, weight: 2.5, max_slots: 4}\n"


async def job(world: World, experiment_id: int) -> Any:
    world.app.state.queue._kept_until = 0.0
    return ok(await world.user.get(f"/api/v1/experiments/{experiment_id}"))["jobSummary"]


async def snapshot(world: World) -> Snapshot:
    async with world.app.state.db.tx() as conn:
        found: Snapshot = await world.app.state.snapshots.read(conn)
        return found


async def test_jobs_ahead_are_experiments_that_came_before(world: World) -> None:
    # Two trials of the first experiment wait: one job all the same.
    first = await world.started(CONFIG)
    second = await world.started(SINGLE)
    third = await world.started(SINGLE)
    found = [await job(world, one.experiment_id) for one in (first, second, third)]
    assert [one["jobsAhead"] for one in found] == [0, 1, 2]
    assert {one["state"] for one in found} == {"STATE_QUEUED"}
    await world.register(slots=3)
    await world.work(5)
    assert await job(world, second.experiment_id) == {"state": "STATE_SCHEDULED", "jobsAhead": 0}
    assert await job(world, third.experiment_id) == {"state": "STATE_QUEUED", "jobsAhead": 0}


async def test_concurrent_questions_for_a_place_share_a_decision(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def idle(*_: object) -> None:
        """The loop decides nothing, which it may do at any time after its rest."""

    monkeypatch.setattr(placement, "schedule_once", idle)
    driver = await world.started(SINGLE)
    snapshots = []

    def decide(snapshot: Snapshot) -> Decision:
        snapshots.append(snapshot)
        return Priority().decide(snapshot)

    monkeypatch.setattr(world.app.state.snapshots.schedulers, "decide", decide)
    monkeypatch.setattr(queue, "KEPT", 10_000)
    path = f"/api/v1/experiments/{driver.experiment_id}"
    answers = await asyncio.gather(*(world.user.get(path) for _ in range(5)))
    assert [ok(answer)["jobSummary"]["state"] for answer in answers] == ["STATE_QUEUED"] * 5
    assert len(snapshots) == 1


async def test_tasks_without_slots_are_in_no_queue(world: World) -> None:
    undriven = await world.submit(SINGLE)
    assert await job(world, undriven) == {"state": "STATE_QUEUED", "jobsAhead": 0}
    assert await job(world, await world.submit(SINGLE, activate=False)) is None
    ok(await world.act(undriven, "kill"))
    assert await job(world, undriven) is None


async def test_ignored_settings_get_a_remark(world: World) -> None:
    answer = ok(await world.user.post("/api/v1/experiments", json={"config": SINGLE + UNHEEDED}))
    weight, no_agent = answer["remarks"]
    assert weight.startswith(
        "resources.weight (2.5) is stored but ignored: resource pool 'default'"
    )
    # Determined's clients know no other names here.
    assert set(answer["warnings"]) <= {"LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"}
    planned = {"config": SINGLE, "validateOnly": True}
    answer = ok(await world.user.post("/api/v1/experiments", json=planned))
    assert answer["remarks"] == [no_agent]
    await world.register(slots=0)
    assert (
        ok(await world.user.post("/api/v1/experiments", json=planned | {"config": NO_SLOTS}))[
            "remarks"
        ]
        == []
    )


@pytest.mark.parametrize(
    ("scheduler", "type_", "fitting", "remarks"),
    [
        ({"type": "priority", "default_priority": 20}, "PRIORITY", "BEST", ["weight"]),
        ({"type": "fair_share", "fitting_policy": "worst"}, "FAIR_SHARE", "WORST", ["priority"]),
        ({"type": "round_robin"}, "ROUND_ROBIN", "BEST", ["priority", "weight"]),
        ({"type": "first_in_first_out"}, "UNSPECIFIED", "BEST", ["priority", "weight"]),
    ],
)
async def test_the_api_says_how_a_pool_serves(
    world: World, scheduler: dict[str, Any], type_: str, fitting: str, remarks: list[str]
) -> None:
    await configure(world, scheduler)
    answer = ok(await world.user.post("/api/v1/experiments", json={"config": SINGLE + UNHEEDED}))
    # The last reason: the pool has no agent.
    assert [one.split(" (")[0] for one in answer["remarks"][:-1]] == [
        f"resources.{one}" for one in remarks
    ]
    await Driver(world, answer["experiment"]["id"]).attach()
    await world.started(SINGLE)
    (pool,) = ok(await world.user.get("/api/v1/resource-pools"))["resourcePools"]
    assert pool["schedulerType"] == f"SCHEDULER_TYPE_{type_}"
    assert pool["schedulerFittingPolicy"] == f"FITTING_POLICY_{fitting}"
    tasks = ok(await world.user.get("/api/v1/tasks"))["allocationIdToSummary"].values()
    assert {task["schedulerType"] for task in tasks} == {f"SCHEDULER_TYPE_{type_}"}
    assert [task["priority"] for task in tasks] == [7, scheduler.get("default_priority", 42)]


async def test_requests_carry_the_stored_cookies(world: World) -> None:
    driver = await world.started(SINGLE + UNHEEDED)
    (trial,) = await world.rows("SELECT id FROM trials")
    await world.rows(
        "INSERT INTO log_policy_matches (trial_id, run_id, name, action, agent_id, line)"
        " VALUES (:id, 1, 'a', 'exclude_node', 'bad', ''), (:id, 2, 'a', 'exclude_node', 'bad', ''),"
        " (:id, 3, 'a', NULL, 'good', '') RETURNING id",
        id=trial["id"],
    )
    stored = await world.row(
        "SELECT a.id, extract(epoch FROM e.start_time)::float8 AS position,"
        " extract(epoch FROM a.requested_at)::float8 AS requested"
        " FROM allocations a JOIN experiments e ON e.id = a.experiment_id"
    )
    (request,) = (await snapshot(world)).requests
    assert request == Request(
        stored["id"],
        "default",
        1,
        driver.experiment_id,
        max_slots=4,
        excluded=frozenset({"bad"}),
        priority=7,
        weight=2.5,
        position=stored["position"],
        preemptible=True,
        requested=stored["requested"],
    )


async def test_slots_on_an_agent_that_drains_count_for_max_slots(world: World) -> None:
    await world.register(slots=2)
    driver = Driver(world, await world.submit(CONFIG + "resources: {max_slots: 1}\n"))
    await driver.attach()
    await world.launched()
    await world.rows("UPDATE agents SET draining = true RETURNING id")
    await world.register(slots=2, agent_id="a2")
    assert (await schedule_once(world.app.state.db, world.app.state.snapshots)).placements == ()
    seen = await snapshot(world)
    assert [agent.id for agent in seen.agents] == ["a2"]
    (waiting,) = Priority().decide(seen).waiting
    assert waiting.reason == GroupAtLimit(used=1, limit=1)


async def test_held_slots_are_used(world: World) -> None:
    driver, _ = await begin(world)
    seen = await snapshot(world)
    (agent,) = seen.agents
    assert (agent.slots[: len(agent.used)], agent.used) == ((0,), {0})
    assert seen.used_by_group == {driver.experiment_id: 1}
