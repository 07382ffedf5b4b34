"""Config policies: set by whom it may concern, and held to by all that is submitted and changed later."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined.common.cluster_config import ClusterConfig
from determined_registry.database.tables import config_policies, experiments
from determined_service.lifecycle import config_policies as keeping
from determined_service.state.change import changing
from tests.integration.roles import give, put_mode
from tests.integration.service_api.test_templates import CONFIG, ok, refused
from tests.integration.service_api.test_workspaces import logged_in, made, project
from tests.integration.service_api.world import World
from tests.waiting import until_async

API = "/api/v1/config-policies"
GLOBAL = f"{API}/global/EXPERIMENT"
EXPERIMENTS = "/api/v1/experiments"
BY_PRIORITY = {"resource_manager": {"type": "agent", "scheduler": {"type": "priority"}}}
SHOWS = "det config-policies describe experiment shows it"


@pytest.fixture
async def admin(user: httpx.AsyncClient, service_app: FastAPI) -> httpx.AsyncClient:
    return await logged_in(service_app, "admin")


@pytest.fixture
async def kim(admin: httpx.AsyncClient, service_app: FastAPI) -> httpx.AsyncClient:
    """Another user, who is no administrator."""
    ok(await admin.post("/api/v1/users", json={"user": {"username": "kim", "active": True}}))
    return await logged_in(service_app, "kim")


def of(workspace: Any, workload: str = "EXPERIMENT") -> str:
    return f"{API}/workspaces/{workspace['id']}/{workload}"


async def put(client: httpx.AsyncClient, path: str, policy: Any) -> Any:
    text = policy if isinstance(policy, str) else json.dumps(policy)
    return ok(await client.put(path, json={"configPolicies": text}))["configPolicies"]


def slots(most: int) -> dict[str, Any]:
    return {"constraints": {"resources": {"max_slots": most}}}


async def ask(user: httpx.AsyncClient, config: str = "", **more: Any) -> httpx.Response:
    return await user.post(EXPERIMENTS, json={"config": CONFIG + config, "activate": False, **more})


async def planned(user: httpx.AsyncClient, config: str = "", **more: Any) -> tuple[Any, list[str]]:
    """The configuration of a submission that is only checked, and the remarks of policies."""
    found = ok(await ask(user, config, validateOnly=True, **more))
    return found["config"], [one for one in found["remarks"] if "config policy" in one]


async def test_a_policy_from_its_beginning_to_its_end(
    user: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    assert ok(await user.get(GLOBAL)) == {"configPolicies": {}}
    text = "# ours\ninvariant_config: {max_restarts: 1}\nconstraints: {priority_limit: 10}\n"
    body = {"configPolicies": text, "workloadType": "EXPERIMENT"}
    policy = {"invariant_config": {"max_restarts": 1}, "constraints": {"priority_limit": 10}}
    assert ok(await admin.put(GLOBAL, json=body)) == {"configPolicies": policy}
    # In any case of letters, and each workload has its own.
    assert ok(await user.get(f"{API}/global/experiment")) == {"configPolicies": policy}
    assert ok(await user.get(f"{API}/global/NTSC")) == {"configPolicies": {}}
    assert await put(admin, GLOBAL, slots(3)) == slots(3)
    assert ok(await user.get(GLOBAL)) == {"configPolicies": slots(3)}
    one = await made(user)
    assert await put(user, of(one, "ntsc"), slots(1)) == slots(1)
    assert ok(await user.get(of(one, "NTSC"))) == {"configPolicies": slots(1)}
    assert ok(await user.get(of(one))) == {"configPolicies": {}}
    for _ in range(2):
        ok(await admin.delete(GLOBAL))
        assert ok(await user.get(GLOBAL)) == {"configPolicies": {}}
        ok(await user.delete(of(one, "NTSC")))
        assert ok(await user.get(of(one, "NTSC"))) == {"configPolicies": {}}


async def test_mistakes_are_refused_with_their_place(admin: httpx.AsyncClient) -> None:
    async def said(text: str, path: str = GLOBAL, **more: Any) -> str:
        body = {"configPolicies": text, **more}
        return refused(await admin.put(path, json=body), 400)

    assert (await said("invariant_config:\n  resources: {slots: 1, prioritee: 3}\n")).startswith(
        "configPolicies:2: invariant_config.resources.prioritee: unknown field; did you mean 'priority'?"
    )
    assert "expected a mapping" in await said("hello")
    assert "the policy says nothing" in await said("{}")
    assert "at most 65536 are allowed" in await said("a: " + "x" * 70_000)
    assert "allowed are EXPERIMENT and NTSC" in await said("{}", f"{API}/global/notebooks")
    assert "of the address" in await said(json.dumps(slots(1)), workloadType="NTSC")
    assert "of the address" in await said(json.dumps(slots(1)), workspaceId=3)
    nowhere = await admin.put(
        f"{API}/workspaces/99999/EXPERIMENT", json={"configPolicies": json.dumps(slots(1))}
    )
    assert "workspace 99999 does not exist" in refused(nowhere, 404)
    assert ok(await admin.get(GLOBAL)) == {"configPolicies": {}}


async def test_the_global_values_win_over_the_workspaces_over_the_users(
    user: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    one = await made(user)
    cats = await project(user, one["id"])
    ok(await user.post("/api/v1/templates/t", json={"config": {"max_restarts": 3}}))
    ours = {"max_restarts": 2, "resources": {"slots_per_trial": 4}, "labels": ["ours"]}
    await put(user, of(one), {"invariant_config": ours})
    await put(admin, GLOBAL, {"invariant_config": {"max_restarts": 1}})
    wish = "resources: {slots_per_trial: 8}\nlabels: [mine]\n"
    config, remarks = await planned(user, wish, projectId=cats["id"], template="t")
    assert config["max_restarts"] == 1
    assert config["resources"]["slots_per_trial"] == 4
    assert sorted(config["labels"]) == ["mine", "ours"]
    assert remarks == [
        "max_restarts is 1, not 3: the global config policy says so",
        "labels is not as it was given: the config policy of workspace vision says so",
        "resources.slots_per_trial is 4, not 8: the config policy of workspace vision says so",
    ]
    # What it does not set, or sets alike, needs no remark; the same text again is remembered.
    for _ in range(2):
        config, remarks = await planned(user, "max_restarts: 1\n", projectId=cats["id"])
        assert (config["resources"]["slots_per_trial"], config["labels"], remarks) == (
            4,
            ["ours"],
            [],
        )
    # Elsewhere, only the global one holds.
    config, remarks = await planned(user, wish)
    assert (config["max_restarts"], config["resources"]["slots_per_trial"]) == (1, 8)
    # What runs outside of the cluster has none of its resources.
    outside = ok(await ask(user, "max_restarts: 7\n", unmanaged=True))
    assert outside["experiment"]["config"]["max_restarts"] == 7
    ok(await admin.delete(GLOBAL))
    assert (await planned(user, "max_restarts: 7\n"))[0]["max_restarts"] == 7


async def test_secrets_of_a_policy_are_for_who_may_set_it(
    user: httpx.AsyncClient, admin: httpx.AsyncClient, kim: httpx.AsyncClient
) -> None:
    one = await made(user)
    storage = {"type": "s3", "bucket": "b", "access_key": "a", "secret_key": "hidden!"}
    policy = {"invariant_config": {"checkpoint_storage": storage}}
    await put(user, of(one), policy)
    await put(admin, GLOBAL, policy)
    for client, path in ((user, of(one)), (admin, of(one)), (admin, GLOBAL)):
        assert ok(await client.get(path)) == {"configPolicies": policy}
    for client, path in ((kim, of(one)), (kim, GLOBAL), (user, GLOBAL)):
        shown = ok(await client.get(path))["configPolicies"]["invariant_config"]
        assert shown["checkpoint_storage"]["secret_key"] == "********"
    wish = "checkpoint_storage: {type: s3, bucket: c, access_key: x, secret_key: mine!}\n"
    _, remarks = await planned(user, wish)
    assert any("checkpoint_storage.bucket is 'b', not 'c'" in one for one in remarks)
    assert "checkpoint_storage.secret_key is not as it was given" in " ".join(remarks)
    assert not any(secret in " ".join(remarks) for secret in ("hidden!", "mine!"))


async def test_slots_above_the_limit_are_refused(
    user: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    one = await made(user)
    cats = await project(user, one["id"])
    await put(admin, GLOBAL, slots(4))
    await put(user, of(one), slots(2))
    found = refused(await ask(user, "resources: {slots_per_trial: 5}\n"), 400)
    assert found == (
        "resources.slots_per_trial: 5 found, at most 4 are allowed: the global config policy says so in "
        f"constraints.resources.max_slots ({SHOWS})"
    )
    found = refused(await ask(user, "resources: {max_slots: 3}\n", projectId=cats["id"]), 400)
    assert found.startswith(
        "resources.max_slots: 3 found, at most 2 are allowed: the config policy of workspace vision"
    )
    assert "describe experiment -w vision shows it" in found
    # The lower one counts, whose it may be.
    await put(user, of(one), slots(9))
    found = refused(await ask(user, "resources: {max_slots: 5}\n", projectId=cats["id"]), 400)
    assert "at most 4 are allowed: the global config policy" in found
    config, remarks = await planned(user)
    assert config["resources"]["max_slots"] == 4
    assert remarks == ["resources.max_slots is 4: the global config policy allows no more"]
    config, remarks = await planned(user, "resources: {max_slots: 3}\n")
    assert (config["resources"]["max_slots"], remarks) == (3, [])


@pytest.mark.parametrize("kind", ["commands", "notebooks", "shells"])
async def test_launched_tasks_have_policies_of_their_own(
    user: httpx.AsyncClient, admin: httpx.AsyncClient, kind: str
) -> None:
    one = await made(user)
    await put(
        user, of(one, "NTSC"), {"invariant_config": {"resources": {"slots": 0}, "debug": True}}
    )
    given = {"entrypoint": ["true"]} if kind == "commands" else {}
    body = {"config": {**given, "resources": {"slots": 2}}, "workspaceId": one["id"]}
    launched = ok(await user.post(f"/api/v1/{kind}", json=body))
    assert launched["config"]["resources"]["slots"] == 0
    assert launched["config"]["debug"] is True
    words = "resources.slots is 0, not 2: the config policy of workspace vision says so"
    assert words in launched["remarks"]
    await put(admin, f"{API}/global/NTSC", slots(1))
    elsewhere = {**body, "workspaceId": 1}
    found = refused(await user.post(f"/api/v1/{kind}", json=elsewhere), 400)
    assert "resources.slots: 2 found, at most 1 are allowed: the global config policy" in found
    assert "det config-policies describe tasks shows it" in found
    ok(await user.post(f"/api/v1/{kind}", json={**body, "preview": True}))
    # Experiments are no tasks.
    assert (await planned(user, "resources: {slots_per_trial: 2}\n"))[1] == []


async def test_generic_tasks_pipelines_and_retrainings_hold_to_them(
    user: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    await put(admin, GLOBAL, slots(1))
    await put(admin, f"{API}/global/NTSC", slots(1))
    wish = "resources: {slots_per_trial: 2}\n"
    task = {"config": "entrypoint: [x]\nresources: {slots: 2}\n"}
    found = refused(await user.post("/api/v1/generic-tasks", json=task), 400)
    assert "at most 1 are allowed" in found
    config = {
        "name": "x",
        "entrypoint": "python3 train.py",
        "hyperparameters": {},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 5}},
        "resources": {"slots_per_trial": 2},
    }
    pipeline = {"pipeline": {"name": "p", "steps": [{"name": "a", "experiment": config}]}}
    found = refused(await user.post("/api/v1/pipelines", json=pipeline), 400)
    assert "step a: resources.slots_per_trial: 2 found, at most 1 are allowed" in found
    ok(await user.post("/api/v1/models", json={"name": "net"}))
    plan = {"evaluate": "code:evaluate", "rule": {"metric": "loss", "confidence": 0.9}}
    retraining = {"config": CONFIG + wish, "plan": plan}
    found = refused(await user.put("/api/v1/models/net/retraining", json=retraining), 400)
    assert "at most 1 are allowed" in found


async def test_a_fork_and_a_continuation_hold_to_them(
    user: httpx.AsyncClient, admin: httpx.AsyncClient, world: World
) -> None:
    wish = "resources: {slots_per_trial: 2}\n"
    first = ok(await ask(user, wish))["experiment"]["id"]
    await put(admin, GLOBAL, {"invariant_config": {"max_restarts": 1}, **slots(1)})
    assert "at most 1 are allowed" in refused(await ask(user, wish, parentId=first), 400)
    # It has begun, and stays as it is.
    kept = ok(await user.get(f"{EXPERIMENTS}/{first}"))["experiment"]["config"]
    assert (kept["resources"]["slots_per_trial"], kept["max_restarts"]) == (2, 5)
    ok(await user.post(f"{EXPERIMENTS}/{first}/kill"))
    async with world.db.tx() as conn:
        over = sa.update(experiments).where(experiments.c.id == first).values(state="CANCELED")
        await conn.execute(over)
    path = f"{EXPERIMENTS}/continue"
    body = {"id": first, "overrideConfig": "max_restarts: 4\n"}
    assert "at most 1 are allowed" in refused(await user.post(path, json=body), 400)
    body["overrideConfig"] += "resources: {slots_per_trial: 1}\n"
    again = ok(await user.post(path, json=body))
    assert again["experiment"]["config"]["max_restarts"] == 1
    assert "max_restarts is 1, not 4: the global config policy says so" in again["remarks"]


async def test_more_important_priorities_are_refused(
    user: httpx.AsyncClient, admin: httpx.AsyncClient, service_app: FastAPI, world: World
) -> None:
    await put_mode(service_app, ClusterConfig.model_validate(BY_PRIORITY))
    limit = {"constraints": {"priority_limit": 20}}
    await put(admin, GLOBAL, limit)
    found = refused(await ask(user, "resources: {priority: 19}\n"), 400)
    assert found == (
        "resources.priority: 19 is more important than 20, the priority_limit of the global config policy "
        f"(in resource pool 'default' a lower number is more important; {SHOWS})"
    )
    config, remarks = await planned(user, "resources: {priority: 20}\n")
    assert (config["resources"]["priority"], remarks) == (20, [])
    # The pool's own priority is less important.
    config, remarks = await planned(user)
    assert (config["resources"]["priority"], remarks) == (None, [])
    # The stricter of two limits; and what sets none is no more important than the limit.
    one = await made(user)
    cats = await project(user, one["id"])
    await put(user, of(one), {"constraints": {"priority_limit": 60}})
    config, remarks = await planned(user, projectId=cats["id"])
    assert config["resources"]["priority"] == 60
    assert remarks == [
        "resources.priority is 60, not 42, the default of resource pool 'default': the config policy of "
        "workspace vision allows no more important one"
    ]
    # With pods a higher number is more important.
    async with world.db.tx() as conn:
        await conn.execute(sa.text("UPDATE pools SET worker_type = 'determined-kubernetes'"))
    found = refused(await ask(user, "resources: {priority: 21}\n"), 400)
    assert "21 is more important than 20" in found
    assert "a higher number is more important" in found
    assert (await planned(user, "resources: {priority: 19}\n"))[1] == []


async def test_later_changes_hold_to_them(
    user: httpx.AsyncClient, admin: httpx.AsyncClient, service_app: FastAPI
) -> None:
    await put_mode(service_app, ClusterConfig.model_validate(BY_PRIORITY))
    begun = ok(await ask(user))["experiment"]
    launch = {"config": {"entrypoint": ["true"]}}
    command = ok(await user.post("/api/v1/commands", json=launch))["command"]
    constraints = {"constraints": {"priority_limit": 20, "resources": {"max_slots": 4}}}
    await put(admin, GLOBAL, {**constraints, "invariant_config": {"resources": {"weight": 2}}})
    await put(admin, f"{API}/global/NTSC", constraints)
    one = f"{EXPERIMENTS}/{begun['id']}"

    async def said(**resources: Any) -> str:
        return refused(await user.patch(one, json={"resources": resources}), 400)

    assert "max_slots: 5 found, at most 4 are allowed" in await said(maxSlots=5)
    assert "max_slots: it cannot be taken away" in await said(maxSlots=None)
    assert "priority: 19 is more important than 20" in await said(priority=19)
    assert "weight: it is 2 and cannot be 1.0: the global config policy" in await said(weight=1)
    ok(await user.patch(one, json={"resources": {"maxSlots": 3, "priority": 21}}))
    queue = "/api/v1/job-queues"
    for job in (begun["jobId"], command["jobId"]):
        answer = await user.post(queue, json={"updates": [{"jobId": job, "priority": 5}]})
        assert "priority: 5 is more important than 20" in refused(answer, 400)
        ok(await user.post(queue, json={"updates": [{"jobId": job, "priority": 30}]}))
    path = f"/api/v1/commands/{command['id']}/set_priority"
    assert "5 is more important" in refused(await user.post(path, json={"priority": 5}), 400)
    ok(await user.post(path, json={"priority": 50}))
    found = ok(await user.get(one))["experiment"]["config"]["resources"]
    assert (found["priority"], found["max_slots"]) == (30, 3)
    shown = ok(await user.get(f"/api/v1/commands/{command['id']}"))["config"]["resources"]
    assert shown["priority"] == 50


async def test_a_job_moves_to_no_pool_where_it_may_not_be(
    user: httpx.AsyncClient, admin: httpx.AsyncClient, service_app: FastAPI, world: World
) -> None:
    by_priority = {
        **BY_PRIORITY,
        "resource_pools": [{"pool_name": name} for name in ("default", "gpu", "pods")],
    }
    await put_mode(service_app, ClusterConfig.model_validate(by_priority))
    async with world.db.tx() as conn:
        pods = "UPDATE pools SET worker_type = 'determined-kubernetes' WHERE name = 'pods'"
        await conn.execute(sa.text(pods))
    job = ok(await ask(user, "resources: {priority: 60}\n"))["experiment"]["jobId"]

    async def move(pool: str) -> httpx.Response:
        body = {"updates": [{"jobId": job, "resourcePool": pool}]}
        return await user.post("/api/v1/job-queues", json=body)

    await put(admin, GLOBAL, {"constraints": {"priority_limit": 50}})
    assert "priority: 60 is more important than 50" in refused(await move("pods"), 400)
    ok(await move("gpu"))
    await put(admin, GLOBAL, {"invariant_config": {"resources": {"resource_pool": "gpu"}}})
    found = refused(await move("default"), 400)
    assert "resource_pool: it is 'gpu' and cannot be 'default'" in found
    ok(await move("gpu"))


async def test_who_may(
    user: httpx.AsyncClient, admin: httpx.AsyncClient, kim: httpx.AsyncClient
) -> None:
    one = await made(user)
    body = {"configPolicies": json.dumps(slots(1))}
    for client in (user, kim):
        found = refused(await client.put(GLOBAL, json=body), 403)
        assert found == "only an administrator may set the config policies of the cluster"
        refused(await client.delete(GLOBAL), 403)
    found = refused(await kim.put(of(one), json=body), 403)
    assert "only its owner determined or an administrator may set the config policies of" in found
    refused(await kim.delete(of(one)), 403)
    ok(await user.put(of(one), json=body))
    ok(await admin.put(of(one), json=body))
    assert ok(await kim.get(of(one))) == {"configPolicies": slots(1)}
    # "Uncategorized" is nobody's: its policies are the administrators'.
    refused(await user.put(f"{API}/workspaces/1/EXPERIMENT", json=body), 403)
    ok(await admin.put(f"{API}/workspaces/1/EXPERIMENT", json=body))
    assert "at most 1" in refused(await ask(user, "resources: {slots_per_trial: 2}\n"), 400)


async def test_who_may_with_roles(
    user: httpx.AsyncClient,
    admin: httpx.AsyncClient,
    kim: httpx.AsyncClient,
    service_app: FastAPI,
) -> None:
    one, two = await made(user), await made(user, "speech")
    await put(admin, GLOBAL, slots(9))
    for name, role in (("kim", "WorkspaceAdmin"), ("determined", "Viewer")):
        await give(service_app, name, role, one["id"])
    await put_mode(service_app)
    body = {"configPolicies": json.dumps(slots(1))}
    ok(await kim.put(of(one), json=body))
    assert ok(await user.get(of(one))) == {"configPolicies": slots(1)}
    assert "WorkspaceAdmin" in refused(await user.put(of(one), json=body), 403)
    assert "does not exist" in refused(await kim.get(of(two)), 404)
    assert "does not exist" in refused(await kim.put(of(two), json=body), 404)
    assert "ClusterAdmin" in refused(await kim.put(GLOBAL, json=body), 403)
    assert "ClusterAdmin" in refused(await kim.get(GLOBAL), 403)
    assert ok(await admin.get(GLOBAL)) == {"configPolicies": slots(9)}


async def test_of_sixteen_writers_none_is_lost(
    admin: httpx.AsyncClient, world: World, user: httpx.AsyncClient
) -> None:
    places = [await made(admin, f"w{number}") for number in range(8)]
    paths = [of(one, workload) for one in places for workload in ("EXPERIMENT", "NTSC")]
    await asyncio.gather(*(put(admin, path, slots(n)) for n, path in enumerate(paths, 1)))
    for n, path in enumerate(paths, 1):
        assert ok(await admin.get(path)) == {"configPolicies": slots(n)}
    await asyncio.gather(*(put(admin, GLOBAL, slots(n)) for n in range(1, 17)))
    rows = await world.rows(
        sa.select(config_policies).where(config_policies.c.workspace_id.is_(None))
    )
    assert len(rows) == 1
    # What is in force is what was stored last.
    most = rows[0].content["constraints"]["resources"]["max_slots"]
    assert (await planned(user, "resources: {slots_per_trial: 0}\n"))[0]["resources"][
        "max_slots"
    ] == most


async def test_what_another_process_sets_holds_here(
    user: httpx.AsyncClient, service_app: FastAPI, world: World
) -> None:
    async with changing(world.db) as change:
        await keeping.put(change, "EXPERIMENT", 1, slots(1), 1)

    async def is_refused() -> bool:
        return (await ask(user, "resources: {slots_per_trial: 2}\n")).status_code == 400

    await until_async("the policy holds", is_refused)


async def test_a_workspaces_policies_go_with_it(user: httpx.AsyncClient, world: World) -> None:
    one = await made(user)
    await put(user, of(one), slots(1))
    async with world.db.tx() as conn:
        await conn.execute(sa.text("DELETE FROM workspaces WHERE id = :id"), {"id": one["id"]})
    assert await world.rows(sa.select(config_policies)) == []
