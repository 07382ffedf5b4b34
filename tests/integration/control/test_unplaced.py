"""Legs that their agent's cluster has no room for: they wait in the queue and are tried again, uncounted."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from determined_service.deleting import kept_usage
from determined_service.lifecycle import unplaced
from determined_service.lifecycle.exits import LOST_IN_A_ROW
from determined_service.scheduling.placement import schedule_once
from determined_service.views import usage
from tests.integration.control.test_explanation import explain
from tests.integration.control.test_launched import launch
from tests.integration.control.test_preemption import single
from tests.integration.control.test_units import launched
from tests.integration.control.world import Trial, World, ok

WHY = "0/3 nodes are available:\n3 Insufficient nvidia.com/gpu."
WORDS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


async def no_room(world: World, spec: dict[str, Any], **more: Any) -> None:
    """The agent reports the end of a leg that its cluster had no room for."""
    world.running.discard(spec["leg_id"])
    body = {"exit_code": None, "kind": "unplaced", "reason": WHY, **more}
    path = f"/internal/v1/allocations/{spec['allocation_id']}/exit"
    ok(await world.agent.post(path, json=body))


async def newest(world: World, task_id: str) -> dict[str, Any]:
    return await world.row(
        "SELECT *, extract(epoch FROM rests_until - requested_at)::float8 AS rest_s FROM allocations"
        " WHERE task_id = :id ORDER BY run_id DESC LIMIT 1",
        id=task_id,
    )


async def rested(world: World) -> None:
    await world.rows(
        "UPDATE allocations SET rests_until = now() WHERE state = 'REQUESTED' RETURNING id"
    )


async def test_it_waits_with_the_clusters_words_and_holds_nobody_back(world: World) -> None:
    await world.register(1, "k")
    first = await world.started(single(42))
    (spec,) = await launched(world)
    trial = Trial(world, spec)
    second = await world.started(single(42))
    await no_room(world, spec)
    # The slot goes to the next one.
    (other,) = await launched(world)
    assert other["experiment_id"] == second.experiment_id
    (item,) = (await explain(world, first.experiment_id))["waiting"]
    words = "wants 1 slot of resource pool 'default'; its agent's cluster did not place it: "
    assert item["reason"].startswith(f"{words}{WORDS}; it is tried again")
    world.app.state.queue._kept_until = 0.0
    path = f"/api/v1/job-queues/{first.experiment_id}/explanation"
    (job,) = ok(await world.user.get(path))["waiting"]
    assert job["reason"].startswith(words)
    assert job["forecast"] is None
    (leg,) = (await explain(world, first.experiment_id))["legs"]
    assert (leg["state"], leg["reason"]) == (
        "STATE_UNPLACED",
        f"its agent's cluster did not place it: {WHY}",
    )
    assert (leg["agentId"], leg["slotIds"]) == ("k", [])
    said = await world.rows(
        "SELECT log, level FROM task_logs WHERE allocation_id = :id ORDER BY id",
        id=trial.allocation_id,
    )
    assert [(row["log"].decode().strip(), row["level"]) for row in said][-1] == (
        f"its agent's cluster did not place it: {WORDS}; it waits in the queue and is tried again in 10 s",
        "WARNING",
    )
    stuck = ok(await world.user.get("/api/v1/cluster/health-report"))["stuck"]
    assert [(one["trialId"], one["times"], one["reason"]) for one in stuck["unplaced"]] == [
        (trial.id, 1, WORDS)
    ]
    assert "task failed" not in str(said)  # What scripts take for the end.
    assert (await world.told_prefect(trial.entity))[-1].startswith(
        "AwaitingSlots: no room: 0/3 nodes"
    )


async def test_it_has_used_no_slots(world: World) -> None:
    await world.register(1, "k")
    await world.started(single(42))
    (spec,) = await launched(world)
    now = datetime.datetime.now(datetime.UTC)
    between = (now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=1))

    async def accounted() -> list[str]:
        async with world.app.state.db.tx() as conn:
            return [row.id for row in await usage.page(conn, *between)]

    assert await accounted() == [spec["allocation_id"]]
    await no_room(world, spec)
    assert await accounted() == []
    # Nor is it kept when the experiment is deleted.
    async with world.app.state.db.tx() as conn:
        await kept_usage.keep(conn, spec["experiment_id"])
    assert await accounted() == []


async def test_it_keeps_its_place_and_is_never_given_up(world: World) -> None:
    await world.register(1, "k")
    driver = await world.started(single(42))
    later = await world.started(single(42))
    rests: list[float] = []
    first = None
    for _ in range(LOST_IN_A_ROW + 2):
        (spec,) = await launched(world)
        assert spec["experiment_id"] == driver.experiment_id
        first = first or await newest(world, spec["task_id"])
        # With the other one paused nothing comes between.
        if not rests:
            ok(await world.act(later.experiment_id, "pause"))
        await no_room(world, spec)
        rests.append((await newest(world, spec["task_id"]))["rest_s"])
        assert await launched(world) == []
        await rested(world)
    assert rests == pytest.approx([*unplaced.RESTS_S, *[unplaced.RESTS_S[-1]] * 6])
    # It is before what came after it.
    ok(await world.act(later.experiment_id, "activate"))
    (spec,) = await launched(world)
    assert spec["experiment_id"] == driver.experiment_id
    trial = Trial(world, spec)
    ok(await trial.started())
    assert (await world.trial(trial.id))["restarts"] == 0
    assert first is not None
    assert (await newest(world, spec["task_id"]))["in_line_since"] == first["requested_at"]
    # A loss counts as the first, though there was no room for many legs before it.
    ok(await trial.exited(exit_code=None, kind="infrastructure", reason="node n1 is gone"))
    row = await newest(world, spec["task_id"])
    assert (row["unplaced_times"], row["rests_until"]) == (0, None)


async def test_the_scheduler_looks_again_by_itself_when_the_rest_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unplaced, "RESTS_S", (0.3,) * len(unplaced.RESTS_S))
    await world.register()
    await world.started(single(42))
    trial = await world.launched()
    await no_room(world, trial.spec)
    again = await world.launched()
    assert (again.id, again.spec["run_id"]) == (trial.id, 2)
    assert (await newest(world, again.spec["task_id"]))["waits_for"] is None


async def test_a_command_waits_too_and_may_be_killed(world: World) -> None:
    await world.register(1, "k")
    task_id = (await launch(world))["command"]["id"]
    (spec,) = await launched(world)
    await no_room(world, spec)
    row = await newest(world, task_id)
    assert (row["state"], row["slots"], row["waits_for"]) == ("REQUESTED", 1, WORDS)
    await rested(world)
    (spec,) = await launched(world)
    assert spec["run_id"] == 2
    await no_room(world, spec)
    ok(await world.user.post(f"/api/v1/commands/{task_id}/kill"))
    assert (await newest(world, task_id))["state"] == "TERMINATED"
    await rested(world)
    assert await launched(world) == []


async def test_what_was_paused_meanwhile_waits_for_its_user(world: World) -> None:
    await world.register(1, "k")
    driver = await world.started(single(42))
    (spec,) = await launched(world)
    ok(await world.act(driver.experiment_id, "pause"))
    await no_room(world, spec)
    assert (await newest(world, spec["task_id"]))["state"] == "TERMINATED"
    # Paused while it rests, it has no request either.
    ok(await world.act(driver.experiment_id, "activate"))
    (spec,) = await launched(world)
    await no_room(world, spec)
    ok(await world.act(driver.experiment_id, "pause"))
    assert (await newest(world, spec["task_id"]))["state"] == "TERMINATED"


async def test_a_gang_of_which_one_node_has_no_room_waits_as_a_whole(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 1, "n2": 1})
    await world.started(single(42, slots=2))
    first, second = await launched(world)
    gang = Trial(world, first)
    ok(await gang.started(node=0))
    await no_room(world, second, node=1)
    # The other node is ended with it.
    body = {"session": world.session, "running": [first["leg_id"]], "timeout_s": 0}
    work = ok(await world.agent.post("/internal/v1/agents/k/work", json=body))
    assert work["kill"] == [first["leg_id"]]
    ok(await gang.exited(exit_code=None, signal=9, node=0))
    row = await newest(world, first["task_id"])
    assert (row["state"], row["waits_for"]) == ("REQUESTED", f"{WORDS} (on agent k)")
    assert (await world.trial(gang.id))["restarts"] == 0
    # Nor has it used slots, not even those of the node that began.
    found = ok(await world.user.get(f"/api/v1/trials/{gang.id}"))["trial"]
    assert found["wallClockTime"] == 0
    (leg,) = found["legs"]
    assert leg["startTime"] is not None
    assert (leg["slotIds"], [node["slotIds"] for node in leg["nodes"]]) == ([], [[], []])


async def test_the_scheduler_wakes_for_nothing_that_has_gone(world: World) -> None:
    await world.register(1, "k")
    driver = await world.started(single(42))
    (spec,) = await launched(world)
    await no_room(world, spec)
    snapshots, db = world.app.state.snapshots, world.app.state.db
    await schedule_once(db, snapshots)
    assert 0 < snapshots.rest_s <= 10
    # Then nothing waits, and no snapshot is read.
    ok(await world.act(driver.experiment_id, "kill"))
    await schedule_once(db, snapshots)
    assert snapshots.rest_s is None
