"""Automatic moves of experiments to a fallback pool."""

from __future__ import annotations

from typing import Any

from determined.common.cluster_config import ClusterConfig
from determined_service.base import topics
from determined_service.lifecycle import configuration, gone_agents
from determined_service.scheduling.fallback import fall_back
from determined_service.state.change import changing
from tests.integration.control.test_jobs import update
from tests.integration.control.test_preemption import single
from tests.integration.control.world import CONFIG, Driver, Trial, World, ok

SPOT = {"pool_name": "spot", "fallback": {"pools": ["on-demand", "large"], "after_seconds": 600}}
POOLS: list[dict[str, Any]] = [
    SPOT,
    {"pool_name": "on-demand"},
    {"pool_name": "large"},
    {"pool_name": "default"},
]


async def set_pools(world: World, pools: list[dict[str, Any]] = POOLS) -> None:
    config = ClusterConfig.model_validate({"resource_pools": pools})
    settings = world.app.state.settings
    await configuration.put(world.app.state.db, config, settings)
    settings.put_in_force(config)


def spot(config: str = "", slots: int = 1, more: str = "") -> str:
    text = config or single(42, slots=slots)
    assert text.count("resources: {") == 1
    return text.replace("resources: {", f"resources: {{resource_pool: spot, {more}")


async def pass_(world: World) -> list[int]:
    state = world.app.state
    return await fall_back(state.db, state.snapshots.schedulers, 30.0)


async def age(world: World, seconds: int) -> None:
    """Let waiting requests be that old."""
    await world.rows(
        "UPDATE allocations SET requested_at = now() - make_interval(secs => :s) "
        "WHERE state = 'REQUESTED' RETURNING id",
        s=seconds,
    )


async def lose(world: World, agent_id: str, seconds: int = 3600) -> None:
    await world.rows(
        "UPDATE agents SET last_heartbeat = now() - make_interval(secs => :s) WHERE id = :id RETURNING id",
        id=agent_id,
        s=seconds,
    )


async def explained(world: World, driver: Driver) -> list[str]:
    world.app.state.queue._kept_until = 0.0
    answer = ok(await world.user.get(f"/api/v1/job-queues/{driver.experiment_id}/explanation"))
    return list(answer["fallback"])


async def test_after_its_wait(world: World) -> None:
    await set_pools(world)
    await world.register(1, "b1", pool="on-demand")
    driver = await world.started(spot())
    assert await pass_(world) == []
    (said,) = await explained(world, driver)
    assert said.startswith("goes on to resource pool 'on-demand' in ")
    await age(world, 599)
    assert await pass_(world) == []
    await age(world, 601)
    assert await pass_(world) == [driver.experiment_id]
    assert await pass_(world) == []
    trial = await world.launched("b1")
    assert trial.spec["experiment_id"] == driver.experiment_id
    config = (await world.experiment(driver.experiment_id))["config"]
    assert config["resources"]["resource_pool"] == "on-demand"
    (said,) = await explained(world, driver)
    assert said == (
        "moved to resource pool 'on-demand', because 'spot' had no slots for it for 601 s"
    )
    ended = await world.row("SELECT reason FROM allocations WHERE state = 'TERMINATED'")
    assert ended["reason"] == said


async def test_what_there_was_no_room_for_has_waited_since_its_first_try(world: World) -> None:
    await set_pools(world)
    await world.register(1, "b1", pool="on-demand")
    driver = await world.started(spot())
    await age(world, 590)
    await world.register(1, "a1", pool="spot")
    for _ in range(2):
        trial = await world.launched("a1")
        ok(await trial.exited(exit_code=None, kind="unplaced", reason="0/3 nodes are available"))
        assert await pass_(world) == []
        await world.rows(
            "UPDATE allocations SET requested_at = requested_at - interval '6 s', rests_until = now()"
            " RETURNING id"
        )
        async with changing(world.app.state.db) as change:
            change.notify(topics.SCHEDULER)
    trial = await world.launched("a1")
    assert await pass_(world) == []  # It may have found room this time.
    ok(await trial.exited(exit_code=None, kind="unplaced", reason="0/3 nodes are available"))
    assert await pass_(world) == [driver.experiment_id]


async def test_a_running_leg_keeps_the_experiment(world: World) -> None:
    await set_pools(world)
    await world.register(1, "a1", pool="spot")
    await world.register(1, "b1", pool="on-demand")
    config = CONFIG + "resources: {resource_pool: spot}\n"
    driver = await world.started(config)  # two trials want a slot each
    trial = await world.launched("a1")
    ok(await trial.started())
    await age(world, 3600)
    assert await pass_(world) == []
    assert await explained(world, driver) == []


async def test_a_pool_waits_for_its_agents_as_long_as_it_says(world: World) -> None:
    db = world.app.state.db
    patient = {"agent_reconnect_wait": "10m"}
    await set_pools(world, [one | patient if one["pool_name"] == "spot" else one for one in POOLS])
    await world.register(1, "a1", pool="spot")
    await world.register(1, "b1", pool="on-demand")
    driver = await world.started(spot())
    trial = await world.launched("a1")
    ok(await trial.started())
    await lose(world, "a1", seconds=500)
    waits = world.app.state.settings.cluster.reconnect_waits()
    assert waits == {"spot": 600.0}
    assert await gone_agents.end_lost(db, 30.0, waits) == []
    assert await pass_(world) == []
    # A time below the service's counts for nothing.
    assert await gone_agents.end_lost(db, 600.0, {"spot": 1.0}) == []
    await lose(world, "a1", seconds=601)
    assert await gone_agents.end_lost(db, 30.0, waits) == [trial.allocation_id]
    assert await pass_(world) == [driver.experiment_id]


async def test_a_pool_that_has_lost_its_agents_is_left_at_once(world: World) -> None:
    await set_pools(world)
    await world.register(1, "a1", pool="spot")
    await world.register(1, "b1", pool="on-demand")
    driver = await world.started(spot())
    trial = await world.launched("a1")
    ok(await trial.started())
    await lose(world, "a1")
    assert await pass_(world) == []  # its leg has not ended yet
    await gone_agents.end_lost(world.app.state.db, 30.0)
    assert await pass_(world) == [driver.experiment_id]
    again = await world.launched("b1")
    assert (again.id, again.spec["run_id"]) == (trial.id, 3)
    legs = await world.rows("SELECT run_id, reason FROM allocations ORDER BY run_id")
    assert [one["reason"] for one in legs[:2]] == [
        legs[0]["reason"],
        "moved to resource pool 'on-demand', because 'spot' has lost its agents",
    ]
    assert legs[0]["reason"].startswith("agent a1 lost for ")
    # No experiment moves back when the first pool's agent returns.
    await world.register(1, "a1", pool="spot")
    assert await pass_(world) == []


async def test_a_pool_whose_agents_are_too_small_is_skipped(world: World) -> None:
    await set_pools(world)
    await world.register(1, "b1", pool="on-demand")
    driver = await world.started(spot(slots=2))
    await age(world, 700)
    assert await pass_(world) == []
    (said,) = await explained(world, driver)
    assert said == (
        "stays: no agent is there now that could run its trials in its fallback pools ('on-demand', 'large')"
    )
    await world.register(2, "c1", pool="large")
    assert await pass_(world) == [driver.experiment_id]
    assert (await world.experiment(driver.experiment_id))["resource_pool"] == "large"
    # It was the last one.
    await age(world, 10_000)
    await lose(world, "c1")
    assert await pass_(world) == []


async def test_the_experiments_own_fallback_comes_first(world: World) -> None:
    await set_pools(world)
    for agent, pool in (("b1", "on-demand"), ("c1", "large"), ("d1", "default")):
        await world.register(0, agent, pool=pool)
    own = "fallback: {pools: [default, large], after_seconds: 5}, slots_per_trial: 0, "
    driver = await world.started(spot(OWN.format(own=own)))
    await age(world, 6)
    assert await pass_(world) == [driver.experiment_id]
    assert (await world.experiment(driver.experiment_id))["resource_pool"] == "default"


OWN = """
name: own
entrypoint: python3 train.py
searcher: {{name: single, metric: loss, max_length: 8}}
resources: {{{own}}}
"""


async def test_from_pool_to_pool(world: World) -> None:
    chain = [
        {"pool_name": "spot", "fallback": {"pools": ["on-demand"], "after_seconds": 10}},
        {"pool_name": "on-demand", "fallback": {"pools": ["large"], "after_seconds": 20}},
        {"pool_name": "large"},
        {"pool_name": "default"},
    ]
    await set_pools(world, chain)
    await world.register(1, "b1", pool="on-demand")
    await world.register(1, "c1", pool="large")
    busy = await world.started(
        single(42).replace("resources: {", "resources: {resource_pool: on-demand, ")
    )
    running: Trial = await world.launched("b1")
    ok(await running.started())
    driver = await world.started(spot())
    await age(world, 11)
    assert await pass_(world) == [driver.experiment_id]
    # Its wait begins anew, and the next pool has a separate wait.
    assert await pass_(world) == []
    await age(world, 15)
    assert await pass_(world) == []
    await age(world, 21)
    assert await pass_(world) == [driver.experiment_id]
    assert (await world.launched("c1")).spec["experiment_id"] == driver.experiment_id
    assert (await world.experiment(busy.experiment_id))["resource_pool"] == "on-demand"


async def test_it_passes_over_pools_that_policies_forbid(world: World) -> None:
    config = ClusterConfig.model_validate(
        {
            "resource_pools": [
                SPOT,
                {
                    "pool_name": "on-demand",
                    "scheduler": {"type": "priority", "default_priority": 10},
                },
                {"pool_name": "large"},
                {"pool_name": "default"},
            ]
        }
    )
    settings = world.app.state.settings
    await configuration.put(world.app.state.db, config, settings)
    settings.put_in_force(config)
    await world.register(1, "b1", pool="on-demand")
    # It gives no priority itself: the default of each pool counts.
    driver = await world.started(spot(OWN.format(own="")))
    path = "/api/v1/config-policies/global/EXPERIMENT"
    policy = {"configPolicies": "constraints: {priority_limit: 30}"}
    ok(await world.agent.put(path, json=policy))
    await age(world, 601)
    assert await pass_(world) == []
    refused, stays = await explained(world, driver)
    assert refused.startswith(
        "does not go to resource pool 'on-demand': priority: 10 is more important"
    )
    assert (
        stays
        == "stays: no agent is there now that could run its trials in its fallback pools ('large')"
    )
    await world.register(1, "c1", pool="large")
    assert await pass_(world) == [driver.experiment_id]
    assert (await world.experiment(driver.experiment_id))["resource_pool"] == "large"


async def test_a_move_by_a_user_ends_the_fallback(world: World) -> None:
    await set_pools(world)
    await world.register(1, "b1", pool="on-demand")
    driver = await world.started(spot())
    await age(world, 700)
    await pass_(world)
    assert await explained(world, driver)
    ok(await update(world, {"jobId": str(driver.experiment_id), "resourcePool": "default"}))
    assert await explained(world, driver) == []
    await age(world, 10_000)
    assert await pass_(world) == []


async def test_missing_pools(world: World) -> None:
    await set_pools(world)
    for fallback, words in (
        (
            "[on-demnd]",
            "resources.fallback.pools[0]: there is no resource pool 'on-demnd'; did you mean",
        ),
        ("[spot]", "resources.fallback"),
        (
            "[on-demand, on-demand]",
            "resources.fallback[1]: 'on-demand' is listed already: leave it out",
        ),
    ):
        answer = await world.user.post(
            "/api/v1/experiments", json={"config": spot(more=f"fallback: {fallback}, ")}
        )
        assert (answer.status_code, words in answer.text) == (400, True), answer.text
