"""The cluster configuration of a service: which one is in force, and which ones are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi_lifespan import LifespanManager

from determined_service.app import create_app
from determined_service.base.settings import Settings
from determined_service.lifecycle.configuration import NotPossible
from tests.integration.conftest import AGENT_TOKEN, client_of
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import World, ok
from tests.waiting import TIMEOUT_S, until_async

TWO = """
resource_pools:
- {pool_name: default, scheduler: {type: fair_share, fitting_policy: worst}}
- pool_name: gpus
  description: the big ones
  max_aux_containers_per_agent: 3
  task_container_defaults: {environment_variables: [FROM=pool], preemption_timeout: 9}
task_container_defaults: {environment_variables: [FROM=cluster]}
checkpoint_storage: {type: s3, bucket: b, secret_key: s3secrets3secret}
"""
OTHERS = """
resource_manager: {default_compute_resource_pool: gpus, default_aux_resource_pool: small}
resource_pools: [{pool_name: gpus}, {pool_name: small}]
"""
IN_GPUS = SINGLE + "resources: {resource_pool: gpus}\n"


@asynccontextmanager
async def service(settings: Settings, text: str | None) -> AsyncIterator[World]:
    """A process of the service whose file says ``text``; None: it has no file."""
    path = settings.data_dir / "cluster.yaml"
    update: dict[str, Any] = {"cluster_config_file": None, "local_agents": ["a1"]}
    if text is not None:
        path.write_text(text)
        update["cluster_config_file"] = path
    # Not model_copy: each process has separate settings.
    app = create_app(Settings(**{**settings.model_dump(), **update}))
    async with (
        LifespanManager(app, startup_timeout=TIMEOUT_S, shutdown_timeout=TIMEOUT_S),
        client_of(app, None) as admin,
        client_of(app, AGENT_TOKEN) as agent,
    ):
        login = {"username": "admin", "password": "", "isHashed": True}
        token = ok(await admin.post("/api/v1/auth/login", json=login))["token"]
        admin.headers["Authorization"] = f"Bearer {token}"
        world = World(app, admin, agent)
        yield world
        await world.close()


async def pools(world: World) -> dict[str, dict[str, Any]]:
    found = ok(await world.user.get("/api/v1/resource-pools"))["resourcePools"]
    return {pool["name"]: pool for pool in found}


async def config(world: World) -> dict[str, Any]:
    return ok(await world.user.get("/api/v1/master/config"))


def refusal(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["error"])


async def test_pools_follow_the_file(settings: Settings) -> None:
    async with service(settings, TWO) as world:
        await world.register(slots=2)
        found = await pools(world)
        assert list(found) == ["default", "gpus"]
        default, gpus = found.values()
        assert (default["defaultComputePool"], default["defaultAuxPool"]) == (True, True)
        assert default["schedulerType"] == "SCHEDULER_TYPE_FAIR_SHARE"
        assert default["schedulerFittingPolicy"] == "FITTING_POLICY_WORST"
        assert (default["numAgents"], default["slotsAvailable"]) == (1, 2)
        assert (gpus["description"], gpus["auxContainerCapacityPerAgent"]) == ("the big ones", 3)
        assert gpus["schedulerType"] == "SCHEDULER_TYPE_PRIORITY"
        assert gpus["details"]["priorityScheduler"] == {
            "preemption": False,
            "defaultPriority": 42,
        }
        assert (gpus["numAgents"], gpus["defaultComputePool"]) == (0, False)


async def test_pools_on_kubernetes_have_its_type_before_their_agents_come(
    settings: Settings,
) -> None:
    """Prefect's work pool keeps the type that it is made with."""
    given = """
resource_manager: {type: kubernetes}
resource_pools: [{pool_name: default}]
additional_resource_managers: [{resource_manager: {type: agent}, resource_pools: [{pool_name: machines}]}]
"""
    async with service(settings, given) as world:
        rows = await world.rows("SELECT name, worker_type FROM pools ORDER BY name")
        assert [tuple(row.values()) for row in rows] == [
            ("default", "determined-kubernetes"),
            ("machines", "determined-process"),
        ]


async def test_defaults_lie_beneath_an_experiment(settings: Settings) -> None:
    async with service(settings, TWO) as world:
        assert (await config(world))["config"]["feature_switches"] == []
        first = await world.experiment(await world.submit(SINGLE))
        second = await world.experiment(await world.submit(IN_GPUS))
        assert (first["resource_pool"], second["resource_pool"]) == ("default", "gpus")
        for row, origin, timeout in ((first, "cluster", None), (second, "pool", 9)):
            stored = row["config"]
            assert stored["environment"]["environment_variables"]["cpu"] == [f"FROM={origin}"]
            assert stored["preemption_timeout"] == timeout
            assert stored["checkpoint_storage"]["bucket"] == "b"


async def test_an_unknown_pool_is_refused(settings: Settings) -> None:
    async with service(settings, TWO) as world:
        wrong = SINGLE + "resources: {resource_pool: gpu}\n"
        answer = await world.user.post("/api/v1/experiments", json={"config": wrong})
        assert refusal(answer) == (
            "resources.resource_pool: there is no resource pool 'gpu'; did you mean 'gpus'? "
            "(allowed: default, gpus)"
        )
        body = {
            "session": world.session, "resource_pool": "gpsu", "host": "h", "version": "1",
            "slot_type": "cpu", "slots": [], "allocations": [],
        }  # fmt: skip
        answer = await world.agent.post("/internal/v1/agents/a9/register", json=body)
        assert (
            "resource_pool of agent a9: there is no resource pool 'gpsu'; did you mean 'gpus'"
            in (refusal(answer))
        )


async def test_a_pool_must_be_named_where_there_is_no_default(settings: Settings) -> None:
    none = "resource_manager: {no_default_resource_pools: true}\n"
    async with service(settings, f"{none}resource_pools: [{{pool_name: gpus}}]\n") as world:
        answer = await world.user.post("/api/v1/experiments", json={"config": SINGLE})
        assert "this cluster has no default pool (there are gpus)" in refusal(answer)
        await world.submit(IN_GPUS)


@pytest.mark.parametrize("launch_error", [True, False])
async def test_too_wide_is_refused_or_waits(settings: Settings, launch_error: bool) -> None:
    wide = {"config": SINGLE + "resources: {slots_per_trial: 9}\n"}
    async with service(settings, f"launch_error: {str(launch_error).lower()}\n") as world:
        await world.register(slots=2)
        answer = await world.user.post("/api/v1/experiments", json=wide)
        if launch_error:
            assert "9 slots are more than any agent" in refusal(answer)
        else:
            assert ok(answer)["warnings"] == ["LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"]
        command = {"config": {"entrypoint": ["true"], "resources": {"slots": 9}}}
        answer = await world.user.post("/api/v1/commands", json=command)
        assert "request unfulfillable: resources.slots: 9 slots" in refusal(answer)


async def test_the_configuration_is_for_administrators_and_masked(settings: Settings) -> None:
    async with service(settings, TWO) as world:
        found = await config(world)
        assert found["refusal"] == ""
        assert found["config"]["checkpoint_storage"]["secret_key"] == "********"
        assert "s3secret" not in str(found)
        async with client_of(world.app, None) as user:
            login = {"username": "determined", "password": "", "isHashed": True}
            token = ok(await user.post("/api/v1/auth/login", json=login))["token"]
            user.headers["Authorization"] = f"Bearer {token}"
            answer = await user.get("/api/v1/master/config")
            assert answer.status_code == 403
            assert "only an administrator may read the cluster configuration" in answer.text


async def test_a_pool_with_work_stays(settings: Settings) -> None:
    async with service(settings, TWO) as world:
        await world.register(slots=1)
        await world.submit(SINGLE)
        waiting = await world.submit(IN_GPUS)
    async with service(settings, None) as world:
        found = await config(world)
        assert (
            f"resource pool 'gpus' cannot be removed, because it has 1 unfinished experiment ({waiting})"
            in (found["refusal"])
        )
        assert "default" not in found["refusal"]
        assert list(await pools(world)) == ["default", "gpus"]
        ok(await world.act(waiting, "kill"))
    async with service(settings, None) as world:
        assert (await config(world))["refusal"] == ""
        assert list(await pools(world)) == ["default"]
        answer = await world.user.post("/api/v1/experiments", json={"config": IN_GPUS})
        assert "there is no resource pool 'gpus'" in refusal(answer)
        answer = await world.user.post("/api/v1/experiments/continue", json={"id": waiting})
        assert f"experiment {waiting} cannot be continued in its resource pool" in refusal(answer)
    async with service(settings, TWO) as world:
        ok(await world.user.post("/api/v1/experiments/continue", json={"id": waiting}))


async def test_a_proposed_configuration_is_checked_and_changes_nothing(settings: Settings) -> None:
    async with service(settings, TWO) as world:
        experiment = await world.submit(IN_GPUS)

        async def objection(text: str) -> str:
            answer = await world.agent.post("/internal/v1/cluster-config", json={"text": text})
            return str(ok(answer)["refusal"])

        async def state() -> object:
            rows = "SELECT name, description, removed FROM pools ORDER BY name"
            return await world.rows(rows), await config(world)

        before = await state()
        assert "it has 1 unfinished experiment" in await objection("{}")
        assert "unknown field" in await objection("resource_pols: []\n")
        assert "not YAML" in await objection("[")
        assert await objection(f"{TWO}launch_error: false\n") == ""
        assert await state() == before
        ok(await world.act(experiment, "kill"))
        assert await objection("{}") == ""
        assert await state() == before


async def test_a_pool_with_a_live_agent_stays_unless_the_agent_follows(settings: Settings) -> None:
    async with service(settings, None) as world:
        await world.register(slots=1)
        await world.register(slots=1, agent_id="a2")
    async with service(settings, OTHERS) as world:
        assert "it has 1 live agent (a2)" in (await config(world))["refusal"]
        await world.rows(
            "UPDATE agents SET last_heartbeat = now() - interval '1 hour' WHERE id = 'a2'"
            " RETURNING id"
        )
    async with service(settings, OTHERS) as world:
        assert (await config(world))["refusal"] == ""


async def test_flows_stay_where_they_are_while_an_experiment_is_unfinished(
    settings: Settings,
) -> None:
    both = "resource_pools: [{pool_name: default}, {pool_name: gpus}]\n"
    moved = f"resource_manager: {{default_compute_resource_pool: gpus}}\n{both}"
    async with service(settings, both) as world:
        experiment = await world.submit(SINGLE)
    async with service(settings, moved) as world:
        found = (await config(world))["refusal"]
        assert "cannot change from 'default' to 'gpus' now" in found
        assert f"1 unfinished experiment ({experiment})" in found
        assert (await pools(world))["default"]["defaultComputePool"] is True
        assert "det agent start --pool default" in found
        # The local cluster's agent moves with the default pool.
        await world.register(slots=1, agent_id="a1")
    async with service(settings, moved) as world:
        assert "cannot change" in (await config(world))["refusal"]
        await world.register(slots=1, agent_id="a2")
    async with service(settings, moved) as world:
        # An agent stays: the experiment keeps its pool, and new ones go to the other.
        assert (await config(world))["refusal"] == ""
        assert (await pools(world))["gpus"]["defaultComputePool"] is True
        rows = await world.rows("SELECT resource_pool FROM experiments ORDER BY id")
        assert [row["resource_pool"] for row in rows] == ["default"]
        later = await world.row(
            "SELECT resource_pool FROM experiments WHERE id = :id", id=await world.submit(SINGLE)
        )
        assert later["resource_pool"] == "gpus"
    async with service(settings, both) as world:
        assert "cannot change from 'gpus'" in (await config(world))["refusal"]
        await world.rows(
            "UPDATE agents SET last_heartbeat = now() - interval '1 hour' RETURNING id"
        )
        await world.rows("UPDATE experiments SET state = 'CANCELED' RETURNING id")
    async with service(settings, both) as world:
        assert (await config(world))["refusal"] == ""
        experiment = await world.submit(SINGLE)
        ok(await world.act(experiment, "kill"))
    async with service(settings, moved) as world:
        assert "1 running deletion" in (await config(world))["refusal"]
        await world.rows("UPDATE tasks SET end_time = now() WHERE kind <> 'TRIAL' RETURNING id")
    async with service(settings, moved) as world:
        assert (await pools(world))["gpus"]["defaultComputePool"] is True


async def test_a_file_with_a_mistake_changes_nothing(settings: Settings) -> None:
    with pytest.raises(NotPossible, match="resource_pols: unknown field"):
        async with service(settings, "resource_pols: []\n"):
            raise AssertionError("it has started with nothing in force")
    async with service(settings, TWO):
        pass
    async with service(settings, "resource_pols: []\n") as world:
        assert "cluster.yaml:1: resource_pols: unknown field" in (await config(world))["refusal"]
        assert list(await pools(world)) == ["default", "gpus"]


async def test_pools_of_an_earlier_release_count_as_in_force(settings: Settings) -> None:
    async with service(settings, None) as world:
        # As after an upgrade: agents had made the pools.
        await world.rows("UPDATE cluster SET config = NULL RETURNING id")
        await world.rows("INSERT INTO pools (name) VALUES ('theirs') RETURNING name")
        await world.rows(
            "INSERT INTO agents (id, resource_pool, session) VALUES ('a8', 'theirs', gen_random_uuid())"
            " RETURNING id"
        )
    async with service(settings, None) as world:
        assert (
            "'theirs' cannot be removed, because it has 1 live agent"
            in ((await config(world))["refusal"])
        )
        assert list(await pools(world)) == ["default", "theirs"]


async def test_other_processes_follow(settings: Settings, tmp_path: Path) -> None:
    async with service(settings, None) as world:
        other = settings.model_copy(update={"data_dir": tmp_path})
        async with service(other, TWO):

            async def names() -> list[str]:
                return list(await pools(world))

            await until_async("both pools", names, equals=["default", "gpus"])
            await world.submit(IN_GPUS)
