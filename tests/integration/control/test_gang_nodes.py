"""A trial on several agents, as its agents and the service talk about it: one allocation, a node on each."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from determined.common.wire.version import GANGS, VERSION
from determined_service.deleting.kept_usage import AGENTS
from determined_service.lifecycle import gone_agents
from determined_service.scheduling.placement import assign, schedule_once
from determined_service.scheduling.scheduler import Placement
from determined_service.scheduling.snapshot import Part
from determined_service.state.change import changing
from determined_service.views import usage
from tests.integration.control.world import Trial, World, ok

WIDE = """
name: wide
entrypoint: python3 train.py
hyperparameters: {x: 1}
resources: {slots_per_trial: 4}
searcher: {name: single, metric: loss, max_length: 8}
max_restarts: 1
"""


class Node:
    """One of the agents, and its process of the gang. Both name it by the agent, as the release before."""

    def __init__(self, world: World, agent_id: str, wire: int = VERSION) -> None:
        self.world = world
        self.agent_id = agent_id
        self.wire = wire
        self.running: set[str] = set()

    async def work(self) -> dict[str, Any]:
        body = {"session": self.world.session, "running": sorted(self.running), "wire": self.wire}
        path = f"/internal/v1/agents/{self.agent_id}/work"
        answer: dict[str, Any] = ok(await self.world.agent.post(path, json=body | {"timeout_s": 0}))
        self.running |= {spec["allocation_id"] for spec in answer["launch"]}
        return answer

    async def launched(self) -> dict[str, Any]:
        (spec,) = (await self.work())["launch"]
        return dict(spec)

    async def started(self, allocation_id: str) -> int:
        body = {"pid": 1, "host": "h", "agent_id": self.agent_id}
        path = f"/internal/v1/allocations/{allocation_id}/running"
        return (await self.world.agent.post(path, json=body)).status_code

    async def exited(self, allocation_id: str, **how: Any) -> None:
        self.running.discard(allocation_id)
        body = {"exit_code": 0, "kind": "exited", "agent_id": self.agent_id} | how
        path = f"/internal/v1/allocations/{allocation_id}/exit"
        ok(await self.world.agent.post(path, json=body))

    async def lost(self) -> None:
        """Its heartbeats have not come for an hour."""
        silent = "UPDATE agents SET last_heartbeat = now() - interval '1 hour' WHERE id = :id"
        async with self.world.app.state.db.tx() as conn:
            await conn.execute(sa.text(silent), {"id": self.agent_id})
        await gone_agents.end_lost(self.world.app.state.db, 60)


async def gang(world: World) -> tuple[Node, Node, Trial]:
    """Two agents of two slots, and the trial that both have been told to start."""
    nodes = Node(world, "a1"), Node(world, "a2")
    for node in nodes:
        await world.register(agent_id=node.agent_id)
    await world.started(WIDE)
    first, second = nodes
    await until_placed(world)
    spec = await first.launched()
    await second.launched()
    return first, second, Trial(world, spec)


async def until_placed(world: World) -> None:
    await schedule_once(world.app.state.db, world.app.state.snapshots)


async def allocation(world: World, trial: Trial) -> dict[str, Any]:
    return await world.row("SELECT * FROM allocations WHERE id = :id", id=trial.allocation_id)


async def leg(world: World, trial: Trial) -> tuple[str, str]:
    found = await world.row(
        "SELECT state, reason FROM legs WHERE allocation_id = :id", id=trial.allocation_id
    )
    return found["state"], found["reason"]


async def test_each_agent_gets_its_part(world: World) -> None:
    nodes = [Node(world, name) for name in ("a1", "a2", "a3")]
    for node in nodes:
        await world.register(agent_id=node.agent_id)
    await world.started(WIDE)
    await until_placed(world)
    specs = [(await node.work())["launch"] for node in nodes]
    assert [len(found) for found in specs] == [1, 1, 0]
    first, second = (found[0] for found in specs[:2])
    assert [(one["node"], one["nodes"], one["slot_ids"]) for one in (first, second)] == [
        (0, 2, [0, 1]),
        (1, 2, [0, 1]),
    ]
    for same in ("allocation_id", "session_token", "trial_seed"):
        assert first[same] == second[same]
    trial = Trial(world, first)
    shown = ok(await world.user.get("/api/v1/agents"))["agents"]
    held = {one["id"]: [slot["container"] for slot in one["slots"].values()] for one in shown}
    assert [all(held[name]) for name in ("a1", "a2")] == [True, True]
    assert not any(held["a3"])
    message = await world.row(
        "SELECT payload ->> 'message' AS text FROM prefect_outbox WHERE entity = :entity"
        " AND payload ->> 'type' = 'PENDING'",
        entity=trial.entity,
    )
    assert message["text"] == "on agents a1 (slots 0, 1) and a2 (slots 0, 1)"
    for node in nodes[:2]:
        assert await node.started(trial.allocation_id) == 200
        assert (await node.work())["kill"] == []
    await nodes[0].exited(trial.allocation_id)
    assert (await allocation(world, trial))["state"] == "RUNNING"
    assert (await nodes[1].work())["kill"] == []
    await nodes[1].exited(trial.allocation_id)
    assert (await allocation(world, trial))["state"] == "TERMINATED"
    assert (await leg(world, trial))[0] == "COMPLETED"
    assert (await trial.client.get(f"/api/v1/trials/{trial.id}")).status_code == 409
    shown = ok(await world.user.get(f"/api/v1/trials/{trial.id}"))["trial"]
    assert [one["agentId"] for one in shown["legs"][0]["nodes"]] == ["a1", "a2"]
    now = datetime.datetime.now(datetime.UTC)
    hour = datetime.timedelta(hours=1)
    async with world.app.state.db.tx() as conn:
        (used,) = await usage.page(conn, now - hour, now + hour)
    assert (used.slots, used.agents) == (4, {"a1": 2, "a2": 2})


async def test_one_failure_ends_all_and_counts_once(world: World) -> None:
    first, second, trial = await gang(world)
    assert await first.started(trial.allocation_id) == 200
    assert await second.started(trial.allocation_id) == 200
    await second.exited(trial.allocation_id, exit_code=3, reason="ValueError: no luck")
    assert (await allocation(world, trial))["state"] == "RUNNING"
    assert (await first.work())["kill"] == [trial.allocation_id]
    assert (await second.work())["launch"] == [], "the next leg began before the gang had ended"
    await first.exited(trial.allocation_id, exit_code=None, signal=9, reason="as asked for")
    state, reason = await leg(world, trial)
    assert (state, reason) == (
        "ERROR",
        "process exited with code 3: ValueError: no luck (on agent a2)",
    )
    assert (await world.trial(trial.id))["restarts"] == 1
    await until_placed(world)
    again = [(await node.launched())["allocation_id"] for node in (first, second)]
    assert again[0] == again[1] != trial.allocation_id


async def test_a_lost_agent_is_not_counted_as_a_failure(world: World) -> None:
    first, second, trial = await gang(world)
    assert await first.started(trial.allocation_id) == 200
    assert await second.started(trial.allocation_id) == 200
    await first.exited(trial.allocation_id, exit_code=1, reason="the launcher on a2 is gone")
    assert (await allocation(world, trial))["state"] == "RUNNING"
    await second.lost()
    state, reason = await leg(world, trial)
    assert state == "LOST"
    assert reason.startswith("agent a2 lost for ")
    assert (await world.trial(trial.id))["restarts"] == 0
    # What still trains there can report nothing, and is killed as soon as its agent is back.
    report = {"run_id": 1, "steps_completed": 1, "metrics": {"loss": 1.0}}
    body = {"stream": "00000000-0000-0000-0000-000000000001", "seq": 1, "reports": [report]}
    answer = await trial.client.post(f"/api/v1/trials/{trial.id}/metrics/batch", json=body)
    assert answer.status_code == 409
    assert "has ended" in answer.text
    assert await second.started(trial.allocation_id) == 409
    await world.register(agent_id="a2", allocations=(trial.allocation_id,))
    assert (await second.work())["kill"] == [trial.allocation_id]
    await until_placed(world)
    assert await first.launched()


@pytest.mark.parametrize("where", ["agents/a2", "agents/a2/slots/1"])
async def test_taken_out_of_use(world: World, where: str) -> None:
    first, second, trial = await gang(world)
    assert await first.started(trial.allocation_id) == 200
    ok(await world.agent.post(f"/api/v1/{where}/disable"))
    for node in (first, second):
        assert (await node.work())["kill"] == [trial.allocation_id]
    await first.exited(trial.allocation_id, exit_code=None, signal=9, reason="as asked for")
    state, reason = await leg(world, trial)
    assert state == "LOST"
    assert reason.endswith("a2 was disabled")


async def test_a_log_policy_excludes_the_node_that_wrote_the_line(world: World) -> None:
    nodes = [Node(world, name) for name in ("a1", "a2", "a3")]
    for node in nodes:
        await world.register(agent_id=node.agent_id)
    await world.started(f"{WIDE}log_policies: [{{pattern: ECC error, action: exclude_node}}]\n")
    await until_placed(world)
    first, second, third = nodes
    trial = Trial(world, await first.launched())
    await second.launched()
    body = {
        "stream": str(uuid.uuid4()),
        "seq": 0,
        "task_id": trial.spec["task_id"],
        "allocation_id": trial.allocation_id,
        "agent_id": "a2",
        "lines": [{"t": 1795266000.5, "stdtype": "stderr", "log": "ECC error\n"}],
    }
    ok(await world.agent.post("/internal/v1/logs", json=body))
    await second.exited(trial.allocation_id, exit_code=1)
    await first.exited(trial.allocation_id, exit_code=None, signal=9, reason="as asked for")
    await until_placed(world)
    again = [(await node.launched())["node"] for node in (first, third)]
    assert again == [0, 1]
    assert (await second.work())["launch"] == []


async def test_killed_before_it_began(world: World) -> None:
    first, second, trial = await gang(world)
    assert await first.started(trial.allocation_id) == 200
    ok(await world.user.post(f"/api/v1/trials/{trial.id}/kill"))
    second.running.clear()  # its order was lost on the way
    assert (await second.work())["launch"] == []
    assert (await first.work())["kill"] == [trial.allocation_id]
    await first.exited(trial.allocation_id, exit_code=None, signal=9, reason="as asked for")
    assert (await leg(world, trial))[0] == "CANCELED"
    assert (await world.trial(trial.id))["state"] == "CANCELED"


async def test_an_agent_that_restarts_without_it(world: World) -> None:
    first, second, trial = await gang(world)
    assert await first.started(trial.allocation_id) == 200
    assert await second.started(trial.allocation_id) == 200
    await world.register(agent_id="a2", allocations=(trial.allocation_id,))
    assert (await first.work())["kill"] == [], "a restart of an agent is no end"
    await world.register(agent_id="a2")
    assert (await first.work())["kill"] == [trial.allocation_id]
    await first.exited(trial.allocation_id, exit_code=None, signal=9, reason="as asked for")
    assert await leg(world, trial) == ("LOST", "agent a2 restarted without it")


async def test_an_agent_of_an_older_release_is_not_asked(world: World) -> None:
    await world.register(agent_id="a1")
    await world.register(agent_id="a2")
    await world.started(WIDE)
    await until_placed(world)
    spec = await Node(world, "a1").launched()
    assert (await Node(world, "a2", GANGS - 1).work())["launch"] == []
    trial = Trial(world, spec)
    first = Node(world, "a1")
    first.running = {trial.allocation_id}
    assert (await first.work())["kill"] == [trial.allocation_id]
    await first.exited(trial.allocation_id, exit_code=None, signal=9, reason="as asked for")
    state, reason = await leg(world, trial)
    assert state == "ERROR"
    assert "would start its part as a trial of its own" in reason
    assert (await world.trial(trial.id))["state"] == "ERROR"


async def test_impossible_requests_are_refused_with_the_numbers(world: World) -> None:
    for name in ("a1", "a2"):
        await world.register(agent_id=name)
    cases = {
        "slots_per_trial: 3": "whole agents with equal numbers of slots do not give that number",
        "slots_per_trial: 6": "whole agents with equal numbers of slots do not give that number",
        "slots_per_trial: 4, is_single_node: true": "resources.is_single_node forbids several",
    }
    for resources, why in cases.items():
        config = WIDE.replace("slots_per_trial: 4", resources)
        answer = await world.user.post("/api/v1/experiments", json={"config": config})
        assert answer.status_code == 400
        assert why in answer.text
        assert "(agents and their slots: a1 2, a2 2)" in answer.text


async def on_one_agent(world: World) -> tuple[list[dict[str, Any]], Trial]:
    """The orders of a gang of two nodes on one agent, which stands for more than one machine."""
    await world.register(slots=4)
    # So that the scheduler does not place it first.
    await world.rows("UPDATE slots SET draining = true RETURNING 1 AS one")
    await world.started(WIDE)
    row = await world.row("SELECT id FROM allocations WHERE state = 'REQUESTED'")
    async with changing(world.app.state.db) as change:
        parts = Part("a1", (0, 1)), Part("a1", (2, 3))
        assert await assign(change, Placement(row["id"], *parts[0], others=parts[1:]))
    orders = (await Node(world, "a1").work())["launch"]
    return orders, Trial(world, orders[0])


async def report(world: World, order: dict[str, Any], verb: str, **how: Any) -> int:
    """The reports of one node's supervisor."""
    body = {"agent_id": "a1", "node": order["node"], **how}
    path = f"/internal/v1/allocations/{order['allocation_id']}/{verb}"
    return (await world.agent.post(path, json=body)).status_code


async def work(world: World, *running: str) -> dict[str, Any]:
    body = {"session": world.session, "running": running, "wire": VERSION, "timeout_s": 0}
    found: dict[str, Any] = ok(await world.agent.post("/internal/v1/agents/a1/work", json=body))
    return found


async def test_an_agent_has_several_nodes_of_a_gang(world: World) -> None:
    (first, second), trial = await on_one_agent(world)
    names = [f"{trial.allocation_id}.n0", f"{trial.allocation_id}.n1"]
    assert [(one["leg_id"], one["node"]) for one in (first, second)] == [
        (names[0], 0),
        (names[1], 1),
    ]
    assert (first["slot_ids"], second["slot_ids"]) == ([0, 1], [2, 3])
    # A node that has not started is ordered again.
    (again,) = (await work(world, names[0]))["launch"]
    assert again["leg_id"] == names[1]
    assert [await report(world, one, "running", pid=1) for one in (first, second)] == [200, 200]
    for number, address in enumerate(("10.0.0.2", "10.0.0.1")):
        name = f"{trial.allocation_id}.{number}"
        path = f"/api/v1/allocations/{trial.allocation_id}/resources/{name}/rendezvous"
        ok(await trial.client.post(path, json={"address": address}))
    found = ok(await trial.client.get(path))["rendezvousInfo"]
    assert (found["addresses"], found["rank"]) == (["10.0.0.1", "10.0.0.2"], 0)
    shown = ok(await world.user.get("/api/v1/agents/a1"))["agent"]
    assert set(shown["containers"]) == set(names)
    assert await report(world, first, "exit", exit_code=0) == 200
    assert (await allocation(world, trial))["state"] == "RUNNING"
    assert (await work(world, names[1]))["kill"] == []
    assert await report(world, second, "exit", exit_code=0) == 200
    assert (await leg(world, trial))[0] == "COMPLETED"
    used = await world.row(
        f"SELECT {AGENTS} AS agents FROM allocations a WHERE id = :id", id=trial.allocation_id
    )
    assert used["agents"] == {"a1": 4}


async def test_a_node_that_fails_ends_the_others_of_its_agent(world: World) -> None:
    (first, second), trial = await on_one_agent(world)
    names = [first["leg_id"], second["leg_id"]]
    for one in (first, second):
        assert await report(world, one, "running", pid=1) == 200
    assert await report(world, second, "exit", exit_code=3) == 200
    assert (await work(world, *names))["kill"] == names
    assert await report(world, first, "exit", signal=9) == 200
    state, reason = await leg(world, trial)
    assert (state, reason) == ("ERROR", "process exited with code 3: on agent a1")


async def test_an_agent_that_restarts_without_a_node_loses_that_one(world: World) -> None:
    (first, second), trial = await on_one_agent(world)
    for one in (first, second):
        assert await report(world, one, "running", pid=1) == 200
    answer = await world.register(slots=4, allocations=(second["leg_id"],))
    assert answer["kill"] == []
    assert (await work(world, second["leg_id"]))["kill"] == [second["leg_id"]]
    assert await report(world, second, "exit", signal=9) == 200
    assert (await leg(world, trial))[0] == "LOST"


async def test_a_leg_that_an_agent_of_the_release_before_began_keeps_its_name(world: World) -> None:
    _, _, trial = await gang(world)
    plain = trial.allocation_id
    body = {"session": world.session, "running": [plain], "wire": VERSION, "timeout_s": 0}
    found = ok(await world.agent.post("/internal/v1/agents/a1/work", json=body))
    assert (found["launch"], found["kill"]) == ([], [])
    ok(await world.act((await allocation(world, trial))["experiment_id"], "kill"))
    found = ok(await world.agent.post("/internal/v1/agents/a1/work", json=body))
    assert found["kill"] == [plain]
