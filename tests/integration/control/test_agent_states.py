"""Agents that change while they live: slots that come, drain and go, and legs that wait."""

from __future__ import annotations

import uuid
from typing import Any

from tests.integration.control.test_explanation import explain
from tests.integration.control.test_gang_nodes import gang
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import World, ok

WHY = "0/3 nodes are available: insufficient nvidia.com/gpu"


async def tell(world: World, *slots: dict[str, Any], agent_id: str = "a1", **waiting: str) -> int:
    body = {"session": world.session, "slots": slots, "waiting": waiting}
    path = f"/internal/v1/agents/{agent_id}/state"
    return (await world.agent.post(path, json=body)).status_code


async def shown(world: World) -> dict[str, tuple[bool, bool]]:
    """What `det slot list` shows: by slot, whether it is enabled, and whether it drains."""
    slots = ok(await world.user.get("/api/v1/agents/a1/slots"))["slots"]
    return {slot["id"]: (slot["enabled"], slot["draining"]) for slot in slots}


async def test_slots_come_drain_and_go(world: World) -> None:
    await world.register(slots=2)
    # An administrator's setting overrides the agent's report about the slot.
    await world.rows("UPDATE slots SET enabled = false WHERE slot_id = 0 RETURNING 1 AS one")
    assert await tell(world, {"id": 0}, {"id": 1, "draining": True}) == 200
    await world.started(SINGLE)
    # One agent is disabled, the other drains: nothing is placed until a third comes.
    assert (await world.work())["launch"] == []
    assert await tell(world, {"id": 0}, {"id": 1, "draining": True}, {"id": 5}) == 200
    trial = await world.launched()
    assert trial.spec["slot_ids"] == [5]
    assert await shown(world) == {"0": (False, False), "1": (True, True), "5": (True, False)}
    # Removing a slot in use does not end the leg that runs there.
    assert await tell(world, {"id": 0}) == 200
    ok(await trial.started())
    assert await shown(world) == {"0": (False, False)}
    assert (await world.work())["kill"] == []


async def test_a_leg_is_told_the_machine_of_its_slots(world: World) -> None:
    await world.register(slots=0)
    nodes = [{"id": 0, "machine": "node-1"}, {"id": 1, "machine": "node-2"}]
    assert await tell(world, *nodes) == 200
    await world.started(SINGLE)
    trial = await world.launched()
    assert (trial.spec["slot_ids"], trial.spec["machine"]) == ([0], "node-1")
    # A slot may move, and an agent that knows no machines names none.
    found = "SELECT machine FROM slots ORDER BY slot_id"
    assert await tell(world, {"id": 0, "machine": "node-3"}, {"id": 1}) == 200
    assert [row["machine"] for row in await world.rows(found)] == ["node-3", None]
    # What is told of machines reaches logs and terminals.
    for bad in ("", "a b", "node\x1b[2J", "a/b", "n" * 254):
        assert await tell(world, {"id": 0, "machine": bad}) == 400
    assert [row["machine"] for row in await world.rows(found)] == ["node-3", None]


async def test_only_the_registered_session_is_heard(world: World) -> None:
    await world.register(slots=2)
    session, world.session = world.session, str(uuid.uuid4())
    assert await tell(world, {"id": 9}) == 409
    world.session = session
    assert await tell(world, {"id": 1}, {"id": 1}) == 400
    assert set(await shown(world)) == {"0", "1"}


async def test_an_accepted_leg_names_its_wait(world: World) -> None:
    await world.register()
    driver = await world.started(SINGLE)
    trial = await world.launched()
    both = {"id": 0}, {"id": 1}
    assert await tell(world, *both, **{trial.allocation_id: WHY}) == 200
    assert await tell(world, *both, **{trial.allocation_id: WHY}) == 200
    words = f"agent a1 cannot start it yet: {WHY}"
    (item,) = (await explain(world, driver.experiment_id))["waiting"][-1:]
    assert (item["trialId"], item["reason"]) == (trial.id, words)
    path = f"/api/v1/job-queues/{driver.experiment_id}/explanation"
    assert [one["reason"] for one in ok(await world.user.get(path))["waiting"]] == [words]
    said = "SELECT log FROM task_logs WHERE allocation_id = :id AND log LIKE '%cannot start%'"
    assert [row["log"] for row in await world.rows(said, id=trial.allocation_id)] == [
        f"{words}\n".encode()
    ]
    told = "SELECT payload ->> 'message' AS text FROM prefect_outbox WHERE entity = :id ORDER BY id"
    messages = [row["text"] for row in await world.rows(told, id=trial.entity)]
    assert messages.count(words) == 1
    assert messages[-1] == words
    await world.rows(
        "UPDATE allocations SET assigned_at = now() - interval '2 minutes' RETURNING id"
    )
    stuck = ok(await world.user.get("/api/v1/cluster/health-report"))["stuck"]
    assert [item["waitsFor"] for item in stuck["notStarted"]] == [WHY]
    ok(await trial.started())
    # Too late.
    assert await tell(world, *both, **{trial.allocation_id: WHY}) == 200
    assert ok(await world.user.get(path))["waiting"] == []


async def test_the_nodes_of_a_gang_wait_each_for_itself(world: World) -> None:
    _, _, trial = await gang(world)
    both = {"id": 0}, {"id": 1}
    assert await tell(world, *both, agent_id="a2", **{f"{trial.allocation_id}.n1": WHY}) == 200
    assert await tell(world, *both, agent_id="a1") == 200
    row = await world.row("SELECT experiment_id FROM trials WHERE id = :id", id=trial.id)
    (item,) = (await explain(world, row["experiment_id"]))["waiting"][-1:]
    assert item["reason"] == f"agent a2 cannot start it yet: {WHY}"
