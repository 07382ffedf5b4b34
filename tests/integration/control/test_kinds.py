"""A kind of task that the core does not know: slots, a token, logs and an end, without a trial."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from determined_service.lifecycle import allocations as allocating
from determined_service.lifecycle import tasks as tasking
from determined_service.lifecycle.gone_agents import end_lost
from determined_service.lifecycle.kinds.base import SlotKind
from determined_service.lifecycle.kinds.table import KINDS
from determined_service.loops.reconciler import Reconciler
from determined_service.state.change import changing
from tests.integration.control.world import Trial, World, ok


class Bakery(SlotKind):
    """Bakes what its configuration says."""

    name = "BAKERY"

    def order(self, row: sa.Row[Any]) -> dict[str, Any]:
        return {"entrypoint": ["bake", row.config["cake"]], "config": row.config}


@pytest.fixture(autouse=True)
def bakery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, Bakery.name, Bakery())


async def bake(world: World, **config: Any) -> str:
    """A task of a separate user, in the queue; returns its id."""
    task_id = str(uuid.uuid4())
    found = await world.rows(
        "INSERT INTO users (username) VALUES ('baker') ON CONFLICT (username) "
        "DO UPDATE SET active = true RETURNING id"
    )
    async with changing(world.app.state.db) as change:
        await tasking.create(
            change,
            task_id,
            Bakery.name,
            owner_id=found[0]["id"],
            name="a cake",
            config={"cake": "plum", **config},
        )
        await allocating.request(change, task_id, pool="default", slots=1)
    return task_id


async def kill(world: World, task_id: str) -> None:
    async with changing(world.app.state.db) as change:
        await tasking.kill(change, task_id)


async def shown(world: World, task_id: str) -> dict[str, Any]:
    task: dict[str, Any] = ok(await world.user.get(f"/api/v1/tasks/{task_id}"))["task"]
    return task


async def report(process: Trial, line: dict[str, Any]) -> httpx.Response:
    return await process.client.post("/api/v1/task/logs", json={"logs": [line]})


async def running(world: World, task_id: str) -> Trial:
    await world.register(slots=1)
    process = await world.launched()
    assert process.spec["task_id"] == task_id
    ok(await process.started())
    return process


async def test_it_waits_runs_logs_and_is_killed_without_a_trial(world: World) -> None:
    task_id = await bake(world)
    (waiting,) = (await shown(world, task_id))["allocations"]
    assert (waiting["state"], waiting["isReady"]) == ("STATE_QUEUED", False)

    process = await running(world, task_id)
    spec = process.spec
    assert spec["entrypoint"] == ["bake", "plum"]
    assert (spec["task_type"], spec["owner"]) == ("BAKERY", "baker")
    assert (spec["trial_id"], spec["experiment_id"]) == (None, None)
    assert len(spec["slot_ids"]) == 1

    # Its token acts only for its owner.
    assert ok(await process.client.get("/api/v1/me"))["user"]["username"] == "baker"
    line = {"taskId": task_id, "allocationId": process.allocation_id, "log": "in the oven\n"}
    assert (await report(process, line)).status_code == 200
    assert (await report(process, line | {"taskId": await bake(world)})).status_code == 403
    log = await world.user.get(f"/api/v1/tasks/{task_id}/logs")
    assert "in the oven" in log.text

    task = await shown(world, task_id)
    assert (task["taskType"], task["username"]) == ("TASK_TYPE_BAKERY", "baker")
    assert (task["state"], task["taskState"]) == ("STATE_ACTIVE", "GENERIC_TASK_STATE_ACTIVE")
    assert (task["name"], task["config"]) == ("a cake", '{"cake": "plum"}')
    assert task["allocations"][0]["isReady"]
    listed = ok(await world.user.get("/tasks"))[process.allocation_id]
    assert (listed["name"], listed["slots_needed"]) == ("a cake", 1)
    assert list(listed["resources"][0]["agent_devices"]) == ["a1"]

    await kill(world, task_id)
    assert (await shown(world, task_id))["taskState"] == "GENERIC_TASK_STATE_STOPPING_CANCELED"
    assert (await world.work())["kill"] == [process.allocation_id]
    ok(await process.exited(exit_code=None, signal=9))
    task = await shown(world, task_id)
    assert (task["state"], task["reason"]) == ("STATE_CANCELED", "killed by the user")
    assert task["endTime"]
    # The token has died with the allocation; saying the same again changes nothing.
    assert (await report(process, line)).status_code == 409
    assert (await process.client.get("/api/v1/me")).status_code == 409
    ok(await process.exited(exit_code=0))
    await kill(world, task_id)
    assert (await shown(world, task_id))["state"] == "STATE_CANCELED"

    assert await world.rows("SELECT 1 FROM trials UNION ALL SELECT 1 FROM experiments") == []
    leg = await world.row("SELECT task_id, run_id, state FROM legs")
    assert leg == {"task_id": task_id, "run_id": 1, "state": "CANCELED"}
    told = await world.told_prefect(f"task:{task_id}")
    assert told == ["Pending", "Running", "Cancelled"]


@pytest.mark.parametrize(
    ("how", "state", "leg", "words"),
    [
        ({"exit_code": 0}, "COMPLETED", "COMPLETED", "process exited with code 0"),
        ({"exit_code": 3}, "ERROR", "ERROR", "process exited with code 3"),
        (
            {"kind": "failed_to_start", "reason": "no oven"},
            "ERROR",
            "ERROR",
            "could not start: no oven",
        ),
    ],
)
async def test_its_exit_is_its_end(
    world: World, how: dict[str, Any], state: str, leg: str, words: str
) -> None:
    task_id = await bake(world)
    process = await running(world, task_id)
    ok(await process.exited(**how))
    task = await shown(world, task_id)
    assert (task["state"], task["reason"]) == (f"STATE_{state}", words)
    assert task["allocations"][0]["exitReason"] == words
    assert (await world.row("SELECT state FROM legs"))["state"] == leg
    # The slot is free again.
    assert (await running(world, await bake(world))).spec["run_id"] == 1


async def test_killed_in_the_queue_it_never_starts(world: World) -> None:
    task_id = await bake(world)
    await kill(world, task_id)
    assert (await shown(world, task_id))["state"] == "STATE_CANCELED"
    await world.register(slots=1)
    assert (await world.work())["launch"] == []


async def test_its_agent_is_lost(world: World) -> None:
    task_id = await bake(world)
    process = await running(world, task_id)
    await world.rows("UPDATE agents SET last_heartbeat = now() - interval '1 minute' RETURNING 1")
    assert await end_lost(world.app.state.db, 30.0) == [process.allocation_id]
    task = await shown(world, task_id)
    assert task["state"] == "STATE_ERROR"
    assert task["reason"].startswith("agent a1 lost for")
    assert (await world.row("SELECT state FROM legs"))["state"] == "LOST"


async def test_the_reconciler_goes_by_its_own_configuration(world: World) -> None:
    hasty = await running(world, await bake(world, preemption_timeout=0))
    async with changing(world.app.state.db) as change:
        await allocating.preempt(change, hasty.allocation_id)
    await Reconciler(world.app.state.db, None, 30.0).run_pass()
    assert (await world.work())["kill"] == [hasty.allocation_id]
