"""Trials on agents by name and label: ``resources.placement``."""

from __future__ import annotations

from typing import Any

import httpx

from determined_service.scheduling.placement import schedule_once
from tests.integration.control.test_jobs import update
from tests.integration.control.test_preemption import single
from tests.integration.control.test_queue import configure
from tests.integration.control.world import CONFIG, World, ok


def wanting(placement: str, slots: int = 1) -> str:
    # One trial, as any experiment that says nothing about its slots.
    config = single(42, slots=slots)
    assert config.count("resources: {") == 1
    return config.replace("resources: {", f"resources: {{placement: {placement}, ")


async def why(world: World, experiment_id: int) -> str:
    world.app.state.queue._kept_until = 0.0
    answer = ok(await world.user.get(f"/api/v1/job-queues/{experiment_id}/explanation"))
    (one,) = answer["waiting"]
    return str(one["reason"])


async def refusal(world: World, config: str) -> str:
    answer = await world.user.post("/api/v1/experiments", json={"config": config})
    assert answer.status_code == 400, answer.text
    return str(answer.json()["message"])


async def test_a_trial_goes_where_its_labels_are_and_others_are_not_held_back(world: World) -> None:
    await world.register(1, "a1", labels={"gpu": "v100"})
    await world.register(1, "a2", labels={"gpu": "a100", "zone": "eu"})
    first = await world.started(wanting("{labels: {gpu: a100}}"))
    trial = await world.launched("a2")
    assert trial.spec["experiment_id"] == first.experiment_id
    ok(await trial.started())
    second = await world.started(wanting("{labels: {gpu: [a100, h100], zone: eu}}"))
    words = await why(world, second.experiment_id)
    assert words == (
        "wants 1 slot of resource pool 'default' on an agent with gpu=a100 or h100 and zone=eu: 0 of 1 are "
        "free"
    )
    # The slot of a1 is not kept for what cannot use it.
    third = await world.started(single(42))
    assert (await world.launched("a1")).spec["experiment_id"] == third.experiment_id
    await trial.run_to_end()
    assert (await world.launched("a2")).spec["experiment_id"] == second.experiment_id
    agents = ok(await world.user.get("/api/v1/agents"))["agents"]
    assert [one["labels"] for one in agents] == [{"gpu": "v100"}, {"gpu": "a100", "zone": "eu"}]


async def test_agents_by_name(world: World) -> None:
    await world.register(2, "a1")
    await world.register(1, "a2")
    driver = await world.started(wanting("{agents: [a2, a3]}"))
    assert (await world.launched("a2")).spec["experiment_id"] == driver.experiment_id
    words = await refusal(world, wanting("{agents: [a2]}", slots=2))
    assert words.endswith(
        "resources.slots_per_trial: 2 slots are more than any agent of the resource pool 'default' that "
        "resources.placement admits has (agents and their slots: a2 1)"
    )


async def test_one_slot_is_in_the_singular(world: World) -> None:
    await world.register(0, "a1")
    words = await refusal(world, wanting("{agents: [a1]}"))
    assert "slots_per_trial: 1 slot is more than any agent of the resource pool 'default'" in words


async def test_unknown_slots_are_refused_and_known_ones_are_waited_for(world: World) -> None:
    await world.register(1, "a1", labels={"gpu": "v100"})
    words = await refusal(world, wanting("{labels: {gpu: a100}}"))
    assert words.endswith(
        "resources.placement: resource pool 'default' knows no agent with gpu=a100 (agents there: "
        "a1; labels: gpu=v100); with `launch_error: false` in the cluster configuration it would wait"
    )
    await world.register(1, "a2", labels={"gpu": "a100"})
    await world.rows(
        "UPDATE agents SET last_heartbeat = now() - interval '1 h' WHERE id = 'a2' RETURNING id"
    )
    driver = await world.started(wanting("{labels: {gpu: a100}}"))
    words = await why(world, driver.experiment_id)
    assert words == (
        "wants 1 slot of resource pool 'default' on an agent with gpu=a100; the pool's only agent is not one "
        "(labels there: gpu=v100)"
    )
    # The agent comes back with another label: its present labels count.
    await world.register(1, "a2", labels={"gpu": "h100"})
    assert "the pool has none (labels there: gpu=h100, gpu=v100)" in await why(
        world, driver.experiment_id
    )
    await world.register(1, "a2", labels={"gpu": "a100"})
    assert (await world.launched("a2")).spec["experiment_id"] == driver.experiment_id


async def test_a_preemption_is_of_an_agent_that_will_do(world: World) -> None:
    await configure(world, {"type": "priority", "preemption": True})
    await world.register(1, "a1", labels={"gpu": "v100"})
    await world.register(1, "a2", labels={"gpu": "a100"})
    for agent in ("a1", "a2"):
        # The later one would be stopped first.
        await world.started(
            single(60).replace("resources: {", f"resources: {{placement: {{agents: [{agent}]}}, ")
        )
        ok(await (await world.launched(agent)).started())
    driver = await world.started(wanting("{labels: {gpu: v100}}"))
    await schedule_once(world.app.state.db, world.app.state.snapshots)
    stopped = await world.rows(
        "SELECT agent_id FROM allocations WHERE preempt_requested_at IS NOT NULL"
    )
    assert stopped == [{"agent_id": "a1"}]
    assert "agent a1 frees 1 slot" in await why(world, driver.experiment_id)


async def test_a_move_to_a_pool_without_such_agents_is_refused(world: World) -> None:
    await configure(world, {"type": "priority"}, "other")
    await world.register(1, "a1", labels={"gpu": "a100"})
    await world.register(1, "b1", pool="other")
    driver = await world.started(wanting("{labels: {gpu: a100}}"))
    answer = await update(world, {"jobId": str(driver.experiment_id), "resourcePool": "other"})
    assert answer.status_code == 400
    assert "resource pool 'other' knows no agent with gpu=a100" in answer.text


async def test_labels_that_cannot_be_queried_are_refused(world: World) -> None:
    async def register(labels: Any) -> httpx.Response:
        body = {"session": world.session, "slots": [], "labels": labels}
        return await world.agent.post("/internal/v1/agents/a9/register", json=body)

    for labels in (
        {"": "x"},
        {"a": ""},
        {"a": "x" * 129},
        {"a": "x\x00"},
        {"a b": "x"},
        {f"k{number}": "v" for number in range(65)},
    ):
        answer = await register(labels)
        assert (answer.status_code, "labels" in answer.text) == (400, True), answer.text
    assert await world.rows("SELECT id FROM agents WHERE id = 'a9'") == []


async def test_a_configuration_without_a_placement_is_as_ever(world: World) -> None:
    await world.register(2, "a1", labels={"gpu": "a100"})
    await world.started(CONFIG)
    assert len((await world.both())["launch"]) == 2
