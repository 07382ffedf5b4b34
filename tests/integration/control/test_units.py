"""Agents that stand for several machines: what a machine can hold, gangs over them, machines that go."""

from __future__ import annotations

from typing import Any

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


async def test_only_administrators_disable_machines(world: World) -> None:
    await world.register(agent_id="k", machines={"n1": 1})
    other = await another_user(world, "mary")
    answer = await other.post("/api/v1/agents/k/machines/n1/disable")
    assert answer.status_code == 403
    assert await shown(world) == {"n1": (True, False)}
