"""Agents that stand for several machines: what a machine can hold, gangs over them, machines that go."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from determined.common.cluster_config import ClusterConfig
from determined.common.wire.version import VERSION
from determined_service.lifecycle import configuration
from tests.integration.control.test_agent_states import tell
from tests.integration.control.test_explanation import explain
from tests.integration.control.test_gang_nodes import until_placed
from tests.integration.control.test_launched import another_user
from tests.integration.control.test_launched import refusal as refused_command
from tests.integration.control.test_placement import refusal
from tests.integration.control.test_preemption import single
from tests.integration.control.test_queue import configure
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import Trial, World, ok

KUBERNETES = "determined-kubernetes"


def where(specs: list[dict[str, Any]]) -> list[tuple[str, str | None, list[int]]]:
    return [
        (spec["leg_id"].partition(".1")[2], spec["machine"], spec["slot_ids"]) for spec in specs
    ]


async def launched(world: World, agent_id: str = "k") -> list[dict[str, Any]]:
    """What the agent is told to launch now; it names its legs as agents of this release do."""
    await until_placed(world)
    body = {"session": world.session, "running": sorted(world.running), "wire": VERSION}
    path = f"/internal/v1/agents/{agent_id}/work"
    answer = ok(await world.agent.post(path, json=body | {"timeout_s": 0}))
    world.running |= {spec["leg_id"] for spec in answer["launch"]}
    return list(answer["launch"])


async def limit_pods(world: World, pool: str, slots: int) -> None:
    given = {
        "resource_pools": [{"pool_name": pool}],
        "task_container_defaults": {"kubernetes": {"max_slots_per_pod": slots}},
    }
    config = ClusterConfig.model_validate(given)
    await configuration.put(world.app.state.db, config, world.app.state.settings)
    world.app.state.settings.put_in_force(config)


async def test_a_gang_has_a_node_on_each_machine_of_one_agent(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 2, "n2": 2, "n3": 2})
    await world.started(single(42, slots=4))
    assert where(await launched(world)) == [(".n0", "n1", [0, 1]), (".n1", "n2", [2, 3])]
    # A leg of one node fits into one machine.
    await world.started(single(42, slots=1))
    await world.started(single(42, slots=2))
    (spec,) = await launched(world)
    assert where([spec]) == [("", "n3", [4])]
    ok(await Trial(world, spec).started())


async def test_what_is_wider_than_a_machine_is_refused_with_the_numbers(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 4, "n2": 2})
    assert await refusal(world, single(42, slots=5)) == (
        "resources.slots_per_trial: 5 slots are more than any machine of the resource pool 'default' has, and"
        " whole machines with equal numbers of slots do not give that number (machines and their slots: k/n1"
        " 4, k/n2 2)"
    )
    command = {"entrypoint": ["true"], "resources": {"slots": 5}}
    assert await refused_command(world, config=command) == (
        "request unfulfillable: resources.slots: 5 slots are more than any machine of the resource pool"
        " 'default' has, and only trials run on several machines (machines and their slots: k/n1 4, k/n2 2)"
    )
    # Several machines together are as good as one, if they are equal.
    await world.submit(single(42, slots=4))
    await world.register(agent_id="k", machines={f"n{one}": 2 for one in range(12)})
    await world.submit(single(42, slots=24))
    words = await refusal(world, single(42, slots=25))
    assert words.endswith("k/n5 2, and 4 more)")


async def test_pods_have_as_many_slots_as_the_pool_says(world: World) -> None:
    await limit_pods(world, "default", 2)
    # Of processes nothing is cut.
    await world.register(4, "a1")
    first = await world.started(single(42, slots=4))
    (spec,) = await launched(world, "a1")
    assert where([spec]) == [("", None, [0, 1, 2, 3])]
    ok(await world.act(first.experiment_id, "kill"))
    ok(await Trial(world, spec).exited(exit_code=None, signal=9))
    await world.rows("DELETE FROM agents RETURNING id")
    await world.register(6, "k", worker_type=KUBERNETES)
    await world.started(single(42, slots=4))
    specs = await launched(world)
    assert where(specs) == [(".n0", None, [0, 1]), (".n1", None, [2, 3])]
    assert "pool 'default' has, and" in await refusal(world, single(42, slots=7))


async def test_a_machine_that_goes_takes_its_slots_along(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 2, "n2": 2})
    await world.started(single(42, slots=2))
    (spec,) = await launched(world)
    trial = Trial(world, spec)
    ok(await trial.started())
    second = [{"id": 2, "machine": "n2"}, {"id": 3, "machine": "n2"}]
    assert await tell(world, *second, agent_id="k") == 200
    # What ran there goes on until its end is reported, and holds nobody's slots.
    await world.started(single(42, slots=2))
    (other,) = await launched(world)
    assert where([other]) == [("", "n2", [2, 3])]
    ok(await trial.exited(kind="infrastructure", reason="node n1 is gone"))
    await until_placed(world)
    third = await world.started(single(42, slots=2))
    found = await explain(world, third.experiment_id)
    assert "0 of 2 are free" in found["waiting"][-1]["reason"]
    # A cordoned one gets nothing new, and one that is back does.
    draining = [one | {"draining": True} for one in second]
    first = [{"id": 7, "machine": "n1"}, {"id": 8, "machine": "n1"}]
    assert await tell(world, *draining, *first, agent_id="k") == 200
    (again,) = await launched(world)
    assert where([again]) == [("", "n1", [7, 8])]
    assert again["trial_id"] == trial.id


async def test_a_trial_is_placed_by_the_name_of_a_machine(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 1, "n2": 1})
    config = single(42).replace("resources: {", "resources: {placement: {agents: [k/n2]}, ")
    await world.started(config)
    assert where(await launched(world)) == [("", "n2", [1])]
    words = await refusal(world, config.replace("k/n2", "k/n3"))
    assert "knows no agent k/n3 (agents there: k;" in words


async def test_a_gang_on_one_agent_is_stopped_as_one(world: World) -> None:
    """The slots of its machines come free together for what is more important."""
    await configure(world, {"type": "priority", "preemption": True})
    await world.register(agent_id="k", machines={"n1": 2, "n2": 2})
    await world.started(single(50, slots=4))
    specs = await launched(world)
    gang = Trial(world, specs[0])
    for number in range(len(specs)):
        ok(await gang.started(node=number))
    urgent = await world.started(single(1, slots=2))
    await until_placed(world)
    assert await gang.preempted(5)
    words = (await explain(world, urgent.experiment_id))["waiting"][-1]["reason"]
    assert words == (
        "wants 2 slots of resource pool 'default': agent k/n1 frees 2 slots, which are held by what was asked"
        " to stop"
    )
    await gang.acknowledge()
    for number in range(len(specs)):
        ok(await gang.exited(node=number))
    world.running.clear()
    found = await launched(world)
    assert [one["experiment_id"] for one in found] == [urgent.experiment_id]


async def test_an_order_says_the_priority_of_its_task_or_its_pool(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 3}, worker_type=KUBERNETES)
    await world.started(single(7))
    await world.started(SINGLE)
    command = {"config": {"entrypoint": ["true"], "resources": {"slots": 1}}}
    ok(await world.user.post("/api/v1/commands", json=command))
    assert sorted(spec["priority"] for spec in await launched(world)) == [7, 50, 50]


async def shown(world: World) -> dict[str, tuple[bool, bool]]:
    """By machine: whether it is enabled, and whether it drains; as its slots say, too."""
    agent = ok(await world.user.get("/api/v1/agents/k"))["agent"]
    found = {name: (one["enabled"], one["draining"]) for name, one in agent["machines"].items()}
    for slot in agent["slots"].values():
        assert (slot["enabled"], slot["draining"]) == found[slot["machine"]]
    return found


async def test_a_machine_is_disabled_for_our_scheduler_and_stays_so(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 1, "n2": 1})
    driver = await world.started(single(42))
    (spec,) = await launched(world)
    trial = Trial(world, spec)
    ok(await trial.started())
    await world.started(single(42, slots=1))
    (other,) = await launched(world)
    await world.started(single(42))
    machines = "/api/v1/agents/k/machines"
    assert (await world.agent.post(f"{machines}/n9/disable")).status_code == 404
    # One that drains goes on with what it has, and gets nothing new.
    ok(await world.agent.post(f"{machines}/n1/disable", json={"drain": True}))
    ok(await world.agent.post(f"{machines}/n2/disable", json={"drain": True}))
    ok(await Trial(world, other).started())
    world.running.discard(other["leg_id"])
    ok(await world.act(other["experiment_id"], "kill"))
    ok(await Trial(world, other).exited(exit_code=None, signal=9))
    assert await shown(world) == {"n1": (False, True), "n2": (False, True)}
    assert (await world.work(0, "k"))["kill"] == []
    # It stays so when it leaves and comes back, and when the agent starts anew.
    assert await tell(world, {"id": 0, "machine": "n1"}, agent_id="k") == 200
    assert await shown(world) == {"n1": (False, True), "n2": (False, True)}
    await world.register(agent_id="k", machines={"n1": 1, "n2": 1}, allocations=(spec["leg_id"],))
    assert await launched(world) == []
    # Without a drain the leg starts again elsewhere, uncounted.
    ok(await world.agent.post(f"{machines}/n2/enable"))
    ok(await world.agent.post(f"{machines}/n1/disable"))
    world.running.clear()
    (again,) = await launched(world)
    assert again["machine"] == "n2"
    leg = await world.row(
        "SELECT reason FROM legs WHERE allocation_id = :id", id=trial.allocation_id
    )
    assert leg["reason"] == "machine k/n1 was disabled"
    assert (await world.trial(trial.id))["restarts"] == 0
    ok(await world.act(driver.experiment_id, "kill"))


async def runs_on(world: World, **machines: str) -> int:
    """The agent says on which machines its cluster has placed legs, by the names of the legs."""
    two = [{"id": 0, "machine": "n1"}, {"id": 1, "machine": "n2"}]
    body = {"session": world.session, "slots": two, "machines": machines}
    return (await world.agent.post("/internal/v1/agents/k/state", json=body)).status_code


async def test_disabling_a_machine_ends_what_runs_there_wherever_its_slots_are(
    world: World,
) -> None:
    """The agent's cluster may place a leg on another machine than the one of its slots."""
    await world.register(agent_id="k", machines={"n1": 1, "n2": 1}, worker_type=KUBERNETES)
    await world.started(single(42))
    (spec,) = await launched(world)
    assert (spec["machine"], spec["avoid"]) == ("n1", [])
    assert await runs_on(world, **{spec["leg_id"]: "n2"}) == 200
    trial = Trial(world, spec)
    ok(await trial.started())
    (leg,) = ok(await world.user.get(f"/api/v1/trials/{trial.id}"))["trial"]["legs"]
    assert (leg["agentId"], leg["machine"]) == ("k", "n2")
    agent = ok(await world.user.get("/api/v1/agents/k"))["agent"]
    assert agent["slots"]["0"]["container"]["machine"] == "n2"
    machines = "/api/v1/agents/k/machines"
    ok(await world.agent.post(f"{machines}/n1/disable"))
    assert (await world.work(0, "k"))["kill"] == []
    ok(await world.agent.post(f"{machines}/n1/enable"))
    ok(await world.agent.post(f"{machines}/n2/disable"))
    world.running.clear()
    (again,) = await launched(world)
    # Its cluster is told of the machine that is out of use.
    assert (again["machine"], again["avoid"]) == ("n1", ["n2"])
    assert again["allocation_id"] != spec["allocation_id"]
    (leg, _) = await world.rows("SELECT id, reason FROM allocations ORDER BY requested_at")
    assert leg["reason"] == "machine k/n2 was disabled"
    assert (await world.trial(trial.id))["restarts"] == 0


async def test_a_leg_that_comes_to_a_machine_which_was_just_disabled_ends(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 1, "n2": 1}, worker_type=KUBERNETES)
    await world.started(single(42))
    (spec,) = await launched(world)
    machines = "/api/v1/agents/k/machines"
    # What drains keeps what it has.
    ok(await world.agent.post(f"{machines}/n2/disable", json={"drain": True}))
    assert await runs_on(world, **{spec["leg_id"]: "n2"}) == 200
    assert (await world.work(0, "k"))["kill"] == []
    assert await runs_on(world, **{spec["leg_id"]: "n1"}) == 200
    ok(await world.agent.post(f"{machines}/n2/disable"))
    assert (await world.work(0, "k"))["kill"] == []
    assert await runs_on(world, **{spec["leg_id"]: "n2"}) == 200
    (leg, *_) = await world.rows("SELECT id, state, reason FROM allocations ORDER BY requested_at")
    assert (leg["state"], leg["reason"]) == ("TERMINATED", "machine k/n2 was disabled")


async def test_of_a_gang_the_node_counts_to_the_machine_on_which_it_runs(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 1, "n2": 1}, worker_type=KUBERNETES)
    await world.started(single(42, slots=2))
    first, second = await launched(world)
    assert await runs_on(world, **{first["leg_id"]: "n1", second["leg_id"]: "n9"}) == 200
    gang = Trial(world, first)
    for number in (0, 1):
        ok(await gang.started(node=number))
    (leg,) = ok(await world.user.get(f"/api/v1/trials/{gang.id}"))["trial"]["legs"]
    assert [node["machine"] for node in leg["nodes"]] == ["n1", "n9"]
    ok(await world.agent.post("/api/v1/agents/k/machines/n2/disable"))
    assert (await world.work(0, "k"))["kill"] == []
    ok(await world.agent.post("/api/v1/agents/k/machines/n1/disable"))
    rows = await world.rows("SELECT node, state, reason FROM allocation_resources ORDER BY node")
    assert (rows[0]["state"], rows[0]["reason"]) == ("TERMINATED", "machine k/n1 was disabled")
    assert rows[1]["state"] == "RUNNING"


async def test_an_agent_names_machines_by_names_of_machines(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 1, "n2": 1}, worker_type=KUBERNETES)
    assert await runs_on(world, leg="a/b") == 400
    # A leg that the agent does not have is another one's business.
    assert await runs_on(world, leg="n1") == 200


async def test_a_refusal_says_what_is_disabled_and_how_to_enable_it(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 2, "n2": 1})
    ok(await world.agent.post("/api/v1/agents/k/machines/n1/disable"))
    assert await refusal(world, single(42, slots=2)) == (
        "resources.slots_per_trial: 2 slots are more than any machine of the resource pool 'default' has"
        " (machines and their slots: k/n2 1; to enable what is disabled: det agent enable k/n1)"
    )
    ok(await world.agent.post("/api/v1/agents/k/machines/n2/disable"))
    command = {"entrypoint": ["true"], "resources": {"slots": 1}}
    assert await refused_command(world, config=command) == (
        "request unfulfillable: resources.slots: 1 slot is more than any agent of the resource pool 'default'"
        " has, and only trials run on several agents (all slots of agent k are disabled; to enable what is"
        " disabled: det agent enable k/n1, det agent enable k/n2)"
    )
    # The same of single slots.
    await world.register(1, "a1")
    ok(await world.agent.post("/api/v1/agents/a1/slots/0/disable"))
    words = await refusal(world, single(42, slots=1))
    assert (
        "all slots of agent a1, k are disabled; to enable what is disabled: det slot enable a1 0"
        in words
    )
    # They suffice once they are enabled.
    ok(await world.agent.post("/api/v1/agents/a1/slots/0/enable"))
    await world.submit(single(42, slots=1))


async def test_only_administrators_disable_machines(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 1})
    other = await another_user(world, "mary")
    answer = await other.post("/api/v1/agents/k/machines/n1/disable")
    assert answer.status_code == 403
    assert await shown(world) == {"n1": (True, False)}


async def test_on_kubernetes_a_higher_priority_is_more_important(world: World) -> None:
    await configure(world, {"type": "priority", "preemption": True})
    await world.register(1, "k", worker_type=KUBERNETES)
    default = SINGLE + "resources: {slots_per_trial: 1}\n"
    first = await world.started(single(49))
    (spec,) = await launched(world)
    trial = Trial(world, spec)
    ok(await trial.started())
    # The default is 50, so what sets none may stop what is less important.
    second = await world.started(default)
    await world.started(single(10))
    await until_placed(world)
    assert await trial.preempted(5)
    world.app.state.queue._kept_until = 0.0
    jobs = ok(await world.user.get("/api/v1/job-queues-v2"))["jobs"]
    shown = [(one["full"]["priority"], one["full"]["higherPriorityFirst"]) for one in jobs]
    assert shown == [(49, True), (50, True), (10, True)]
    (pool,) = ok(await world.user.get("/api/v1/resource-pools"))["resourcePools"]
    assert pool["details"]["priorityScheduler"]["defaultPriority"] == 50
    await trial.acknowledge()
    world.running.clear()
    ok(await trial.exited())
    (again,) = await launched(world)
    assert again["experiment_id"] == second.experiment_id
    assert first.experiment_id != second.experiment_id


ECC_POLICY = "log_policies: [{name: ECC, pattern: ECC error, action: exclude_node}]\n"


async def prints_ecc(world: World, spec: dict[str, Any], **owner: Any) -> None:
    body = {
        "stream": str(uuid.uuid4()),
        "seq": 0,
        "task_id": spec["task_id"],
        "allocation_id": spec["allocation_id"],
        "agent_id": "k",
        "lines": [{"t": 1795266000.5, "stdtype": "stderr", "log": "ECC error\n"}],
    }
    ok(await world.agent.post("/internal/v1/logs", json=body | owner))


@pytest.mark.parametrize("machines", [{"n1": 2, "n2": 2}, None], ids=["counted", "stated"])
async def test_a_log_policy_excludes_the_machine_on_which_the_leg_ran(
    world: World, machines: dict[str, int] | None
) -> None:
    """Not the one that the scheduler counted on; also where the agent states a number of slots only."""
    await world.register(agent_id="k", slots=4, machines=machines)
    await world.started(single(42, slots=2) + ECC_POLICY)
    (spec,) = await launched(world)
    trial = Trial(world, spec)
    ok(await trial.started())
    await prints_ecc(world, spec, machine="n2")
    world.running.clear()
    ok(await trial.exited(exit_code=1))
    (again,) = await launched(world)
    assert again["avoid"] == ["n2"]
    if machines is not None:
        assert spec["machine"] == again["machine"] == "n1"


async def test_a_machine_of_lines_needs_a_machines_name(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 2})
    await world.started(single(42, slots=2) + ECC_POLICY)
    (spec,) = await launched(world)
    with pytest.raises(AssertionError, match="machine: 'a/b' is not a machine's name"):
        await prints_ecc(world, spec, machine="a/b")


async def test_a_log_policy_excludes_a_machine_and_not_its_agent(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 2, "n2": 2, "n3": 2})
    await world.started(single(42, slots=4) + ECC_POLICY)
    specs = await launched(world)
    assert where(specs) == [(".n0", "n1", [0, 1]), (".n1", "n2", [2, 3])]
    gang = Trial(world, specs[0])
    for number in (0, 1):
        ok(await gang.started(node=number))
    await prints_ecc(world, specs[1], node=1)
    world.running.clear()
    for number in (0, 1):
        ok(await gang.exited(exit_code=None, kind="infrastructure", reason="ECC", node=number))
    specs = await launched(world)
    assert [spec["machine"] for spec in specs] == ["n1", "n3"]
    # Its agent's cluster is told, too, because it may choose another machine than our scheduler thought of.
    assert [spec["avoid"] for spec in specs] == [["n2"], ["n2"]]
    # Without a machine to run on the trial ends.
    again = Trial(world, specs[0])
    for number in (0, 1):
        ok(await again.started(node=number))
    await prints_ecc(world, specs[0], node=0)
    world.running.clear()
    for number in (0, 1):
        ok(await again.exited(exit_code=1, node=number))
    found = await world.trial(again.id)
    assert found["state"] == "ERROR"
    assert "excluded k/n1 (log policy 'ECC'), k/n2 (log policy 'ECC')" in found["reason"]
