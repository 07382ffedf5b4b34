"""Where things go: `workspace` and `project` of configurations, and the fields of requests."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import experiments, tasks
from determined_service.prefect.kept_owners import KeptExperiment
from tests.integration.service_api.test_templates import CONFIG, ok, refused
from tests.integration.service_api.test_workspaces import logged_in, made, project
from tests.integration.service_api.world import World

EXPERIMENTS = "/api/v1/experiments"


@pytest.fixture
async def admin(user: httpx.AsyncClient, service_app: FastAPI) -> httpx.AsyncClient:
    return await logged_in(service_app, "admin")


async def submitted(user: httpx.AsyncClient, config: str = "", **more: Any) -> Any:
    body = {"config": CONFIG + config, "activate": False, **more}
    return ok(await user.post(EXPERIMENTS, json=body))["experiment"]


async def test_an_experiment_goes_where_its_configuration_says(user: httpx.AsyncClient) -> None:
    one = await made(user)
    cats = await project(user, one["id"])
    first = await submitted(user)
    assert (first["projectId"], first["workspaceName"]) == (1, "Uncategorized")
    named = await submitted(user, "workspace: VISION\nproject: Cats\n")
    assert (named["projectId"], named["projectName"]) == (cats["id"], "cats")
    assert (named["workspaceId"], named["workspaceName"]) == (one["id"], "vision")
    by_id = await submitted(user, projectId=cats["id"])
    assert by_id["projectName"] == "cats"
    template = {"config": {"workspace": "vision", "project": "cats"}}
    ok(await user.post("/api/v1/templates/place", json=template))
    of_template = await submitted(user, template="place")
    assert of_template["projectName"] == "cats"
    listed = ok(await user.get(EXPERIMENTS, params={"projectId": cats["id"]}))["experiments"]
    assert sorted(each["id"] for each in listed) == [named["id"], by_id["id"], of_template["id"]]
    outside = await submitted(user, "workspace: vision\nproject: cats\n", unmanaged=True)
    assert outside["projectName"] == "cats"


async def test_unknown_and_closed_places_are_refused(user: httpx.AsyncClient, world: World) -> None:
    one = await made(user)
    cats = await project(user, one["id"])
    before = len(await world.rows(sa.select(experiments.c.id)))

    async def said(config: str, status: int = 400, **more: Any) -> str:
        body = {"config": CONFIG + config, **more}
        return refused(await user.post(EXPERIMENTS, json=body), status)

    assert await said("workspace: visoin\nproject: cats\n") == (
        "workspace: there is no workspace 'visoin'; did you mean 'vision'? "
        "(there are Uncategorized, vision)"
    )
    assert await said("workspace: vision\nproject: cat\n") == (
        "project: there is no project 'cat' in workspace 'vision'; did you mean 'cats'? "
        "(there are cats)"
    )
    assert (await said("project: cats\n")).startswith("workspace: required field is missing")
    assert await said("workspace: vision\n") == (
        "project: required field is missing: workspace 'vision' has cats"
    )
    assert await said("", projectId=999999) == "projectId: project 999999 does not exist"
    assert ":7: workspace: expected text" in await said("workspace: [vision]\nproject: cats\n")
    ok(await user.post(f"/api/v1/projects/{cats['id']}/archive"))
    closed = "workspace: vision\nproject: cats\n"
    assert "project 'cats' is archived" in await said(closed, 409)
    assert "project 'cats' is archived" in await said(closed, 409, unmanaged=True)
    launch = {"config": {"entrypoint": ["true"], "workspace": "vision", "project": "cats"}}
    assert "is archived" in refused(await user.post("/api/v1/commands", json=launch), 409)
    model = {"name": "net", "workspaceName": "visoin"}
    assert "did you mean 'vision'" in refused(await user.post("/api/v1/models", json=model), 404)
    assert len(await world.rows(sa.select(experiments.c.id))) == before


async def test_a_workspaces_storage_and_pools_lie_between(
    user: httpx.AsyncClient, world: World
) -> None:
    async with world.db.tx() as conn:
        await conn.execute(sa.text("INSERT INTO pools (name) VALUES ('gpu'), ('aux')"))
    storage = {"type": "s3", "bucket": "ours", "save_trial_best": 7}
    one = await made(
        user,
        checkpointStorageConfig=storage,
        defaultComputePool="gpu",
        defaultAuxPool="aux",
    )
    cats = await project(user, one["id"])

    async def stored(config: str = "") -> tuple[Any, str]:
        body = {"config": CONFIG + config, "projectId": cats["id"], "validateOnly": True}
        found = ok(await user.post(EXPERIMENTS, json=body))["config"]
        return found["checkpoint_storage"], found["resources"]["resource_pool"]

    found, pool = await stored()
    assert (found["type"], found["bucket"], found["save_trial_best"]) == ("s3", "ours", 7)
    assert pool == "gpu"
    found, pool = await stored("checkpoint_storage: {save_trial_best: 2}\n")
    assert (found["bucket"], found["save_trial_best"]) == ("ours", 2)
    found, pool = await stored(
        "checkpoint_storage: {type: shared_fs, host_path: /mine}\nresources: {resource_pool: default}\n"
    )
    assert (found["type"], found["host_path"], found["save_trial_best"]) == (
        "shared_fs",
        "/mine",
        7,
    )
    assert pool == "default"
    assert (await stored("resources: {slots_per_trial: 0}\n"))[1] == "aux"
    outside = ok(await user.post(EXPERIMENTS, json={"config": CONFIG, "validateOnly": True}))
    assert outside["config"]["checkpoint_storage"].get("bucket") != "ours"
    launch = {"config": {"entrypoint": ["true"]}, "workspaceId": one["id"], "preview": True}
    task = ok(await user.post("/api/v1/commands", json=launch))
    assert task["config"]["resources"]["resource_pool"] == "gpu"


async def test_a_bound_pool_refuses_other_workspaces(
    user: httpx.AsyncClient, admin: httpx.AsyncClient, world: World
) -> None:
    async with world.db.tx() as conn:
        await conn.execute(sa.text("INSERT INTO pools (name) VALUES ('gpu')"))
    one = await made(user)
    cats = await project(user, one["id"])
    path = "/api/v1/resource-pools/gpu/workspace-bindings"
    ok(await admin.post(path, json={"workspaceIds": [one["id"]]}))
    wanted = "resources: {resource_pool: gpu}\n"
    said = refused(await user.post(EXPERIMENTS, json={"config": CONFIG + wanted}), 400)
    assert said.startswith("resources.resource_pool: resource pool 'gpu' is bound to workspaces")
    assert "'Uncategorized' is none of them" in said and "allowed: default" in said
    assert (await submitted(user, wanted, projectId=cats["id"]))["resourcePool"] == "gpu"
    launch: dict[str, Any] = {"config": {"resources": {"resource_pool": "gpu"}}}
    launch["config"]["entrypoint"] = ["true"]
    assert "is bound" in refused(await user.post("/api/v1/commands", json=launch), 400)
    task = ok(await user.post("/api/v1/commands", json=launch | {"workspaceId": one["id"]}))
    assert task["command"]["workspaceName"] == "vision"


async def test_tasks_models_and_pipelines_have_a_workspace(
    user: httpx.AsyncClient, world: World
) -> None:
    one = await made(user)
    cats = await project(user, one["id"])
    launch: dict[str, Any] = {"config": {"entrypoint": ["true"]}}
    first = ok(await user.post("/api/v1/commands", json=launch))["command"]
    there = ok(await user.post("/api/v1/commands", json=launch | {"workspaceId": one["id"]}))
    assert (first["workspaceId"], there["command"]["workspaceId"]) == (1, one["id"])
    listed = ok(await user.get("/api/v1/commands", params={"workspaceId": one["id"]}))
    assert [each["id"] for each in listed["commands"]] == [there["command"]["id"]]
    within = ok(await user.post("/api/v1/commands", json=launch | {"projectId": cats["id"]}))
    (row,) = await world.rows(sa.select(tasks).where(tasks.c.id == within["command"]["id"]))
    assert (row.workspace_id, row.project_id) == (one["id"], cats["id"])
    generic = {"config": "entrypoint: ['true']", "projectId": cats["id"]}
    task_id = ok(await user.post("/api/v1/generic-tasks", json=generic))["taskId"]
    (row,) = await world.rows(sa.select(tasks).where(tasks.c.id == task_id))
    assert (row.project_id, row.workspace_id) == (cats["id"], one["id"])
    model = {"name": "net", "workspaceId": one["id"]}
    assert ok(await user.post("/api/v1/models", json=model))["model"]["workspaceName"] == "vision"
    found = ok(await user.get("/api/v1/models", params={"workspaceNames": ["Vision"]}))["models"]
    assert [each["name"] for each in found] == ["net"]
    ok(await user.patch("/api/v1/models/net", json={"workspaceName": "Uncategorized"}))
    assert ok(await user.get("/api/v1/models/net"))["model"]["workspaceId"] == 1
    step = {"name": "a", "experiment": {"entrypoint": "x", "searcher": SEARCHER}}
    body = {
        "pipeline": {"name": "p", "steps": [step]},
        "workspaceName": "vision",
        "projectName": "cats",
    }
    number = ok(await user.post("/api/v1/pipelines", json=body))["pipelineId"]
    shown = ok(await user.get(f"/api/v1/pipelines/{number}"))["pipeline"]
    assert (shown["workspaceName"], shown["projectId"]) == ("vision", cats["id"])


SEARCHER = {"name": "single", "metric": "loss", "max_length": {"batches": 5}}


async def test_an_archived_project_continues_nothing(user: httpx.AsyncClient, world: World) -> None:
    one = await made(user)
    cats = await project(user, one["id"])
    found = await submitted(user, projectId=cats["id"])
    async with world.db.tx() as conn:
        await conn.execute(sa.update(experiments).values(state="COMPLETED"))
    ok(await user.post(f"/api/v1/workspaces/{one['id']}/archive"))
    body = {"id": found["id"], "overrideConfig": "{}"}
    said = refused(await user.post(f"{EXPERIMENTS}/continue", json=body), 409)
    assert "workspace 'vision' is archived" in said


async def test_runs_in_prefect_have_tags_of_their_place(
    user: httpx.AsyncClient, world: World
) -> None:
    one = await made(user)
    cats = await project(user, one["id"])
    there = await submitted(user, projectId=cats["id"])
    first = await submitted(user)

    async def tags(experiment_id: int) -> list[str]:
        order = await KeptExperiment().order(world.db, experiment_id)
        assert order is not None
        return [tag for tag in order.tags if ":" in tag]

    assert await tags(there["id"]) == ["workspace:vision", "project:cats"]
    assert await tags(first["id"]) == []
    launch = {"config": {"entrypoint": ["true"]}, "workspaceId": one["id"]}
    ok(await user.post("/api/v1/commands", json=launch))
    moved = {"destinationProjectId": cats["id"]}
    ok(await user.post(f"{EXPERIMENTS}/{first['id']}/move", json=moved))
    rows = await world.rows(sa.text("SELECT kind, payload -> 'place' AS place FROM prefect_outbox"))
    told = {row.kind: row.place for row in rows if row.place}
    assert told == {
        "create_task_run": ["workspace:vision"],
        "name_run": ["workspace:vision", "project:cats"],
    }
