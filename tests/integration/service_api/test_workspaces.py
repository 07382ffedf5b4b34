"""Workspaces and projects: made, changed, archived, moved, bound to pools and deleted."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry import models as registry
from determined_registry.database.tables import experiments, projects, tasks, workspaces
from determined_service.deleting import erasure
from determined_service.loops import places
from determined_service.state.change import changing
from tests.integration.conftest import client_of
from tests.integration.service_api.test_templates import ok, refused
from tests.integration.service_api.world import World

API = "/api/v1/workspaces"
PROJECTS = "/api/v1/projects"


@pytest.fixture
async def other(user: httpx.AsyncClient, service_app: FastAPI) -> httpx.AsyncClient:
    """Another user, who is no administrator."""
    admin = await logged_in(service_app, "admin")
    ok(await admin.post("/api/v1/users", json={"user": {"username": "kim", "active": True}}))
    return await logged_in(service_app, "kim")


@pytest.fixture
async def admin(user: httpx.AsyncClient, service_app: FastAPI) -> httpx.AsyncClient:
    return await logged_in(service_app, "admin")


async def logged_in(app: FastAPI, name: str) -> httpx.AsyncClient:
    client = client_of(app, None)
    body = {"username": name, "password": "", "isHashed": False}
    client.headers["Authorization"] = (
        f"Bearer {ok(await client.post('/api/v1/auth/login', json=body))['token']}"
    )
    return client


async def made(client: httpx.AsyncClient, name: str = "vision", **more: Any) -> Any:
    return ok(await client.post(API, json={"name": name, **more}))["workspace"]


async def project(client: httpx.AsyncClient, within: int, name: str = "cats", **more: Any) -> Any:
    return ok(await client.post(f"{API}/{within}/projects", json={"name": name, **more}))["project"]


async def test_uncategorized_is_there_and_stays(
    user: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    first = ok(await user.get(f"{API}/1"))["workspace"]
    assert (first["name"], first["immutable"], first["numProjects"]) == ("Uncategorized", True, 1)
    for method, path, body in (
        ("PATCH", "", {"name": "mine"}),
        ("DELETE", "", None),
        ("POST", "/archive", None),
    ):
        answer = await admin.request(method, f"{API}/1{path}", json=body)
        assert "cluster's own" in refused(answer, 409)
        answer = await admin.request(method, f"{PROJECTS}/1{path}", json=body)
        assert "cluster's own" in refused(answer, 409)
    assert "cluster's own" in refused(
        await admin.post(f"{API}/1/projects", json={"name": "x"}), 409
    )


async def test_workspaces_are_found_changed_and_pinned(
    user: httpx.AsyncClient, other: httpx.AsyncClient
) -> None:
    one = await made(user, "  vision ")
    assert (one["name"], one["username"], one["pinned"]) == ("vision", "determined", False)
    assert "already" in refused(await other.post(API, json={"name": "VISION"}), 409)
    assert "needs a printable" in refused(await user.post(API, json={"name": " "}), 400)
    assert "at most 80" in refused(await user.post(API, json={"name": "x" * 81}), 400)
    two = await made(other, "speech")
    said = refused(await other.patch(f"{API}/{one['id']}", json={"name": "mine"}), 403)
    assert said == f"only its owner determined or an administrator may change workspace {one['id']}"
    changed = ok(await user.patch(f"{API}/{one['id']}", json={"name": "seeing"}))["workspace"]
    assert changed["name"] == "seeing"
    assert "already" in refused(
        await user.patch(f"{API}/{one['id']}", json={"name": "Speech"}), 409
    )
    ok(await user.post(f"{API}/{two['id']}/pin"))
    ok(await user.post(f"{API}/{two['id']}/pin"))

    async def names(client: httpx.AsyncClient, **params: Any) -> list[str]:
        found = ok(await client.get(API, params=params))
        return [one["name"] for one in found["workspaces"]]

    assert await names(user) == ["Uncategorized", "seeing", "speech"]
    assert await names(user, pinned=True) == ["speech"]
    assert await names(other, pinned=True) == []
    assert await names(user, sortBy="SORT_BY_NAME", orderBy="ORDER_BY_DESC") == [
        "Uncategorized",
        "speech",
        "seeing",
    ]
    assert await names(user, nameCaseSensitive="SEEING") == []
    assert await names(user, name="EE", limit=1, offset=1) == ["speech"]
    assert await names(user, users=["kim"]) == ["speech"]
    ok(await user.post(f"{API}/{two['id']}/unpin"))
    assert await names(user, pinned=True) == []


async def test_only_administrators_set_the_account_on_agents(
    user: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    account = {"agentUid": 1000, "agentGid": 1000, "agentUser": "lab", "agentGroup": "lab"}
    said = refused(await user.post(API, json={"name": "lab", "agentUserGroup": account}), 403)
    assert "only an administrator may set the account on agents of" in said
    one = await made(user, "lab")
    path = f"{API}/{one['id']}"
    assert "account" in refused(await user.patch(path, json={"agentUserGroup": account}), 403)
    found = ok(await admin.patch(path, json={"agentUserGroup": account}))["workspace"]
    assert found["agentUserGroup"] == account


async def test_a_storage_is_checked_and_its_secrets_are_masked(
    user: httpx.AsyncClient, other: httpx.AsyncClient
) -> None:
    storage = {"type": "s3", "bucket": "b", "access_key": "AK", "secret_key": "very-secret"}
    one = await made(user, checkpointStorageConfig=storage)
    assert one["checkpointStorageConfig"]["secret_key"] == "very-secret"
    seen = ok(await other.get(f"{API}/{one['id']}"))["workspace"]["checkpointStorageConfig"]
    assert (seen["bucket"], seen["secret_key"]) == ("b", "********")
    wrong = {"type": "s3", "buckt": "b"}
    said = refused(
        await user.patch(f"{API}/{one['id']}", json={"checkpointStorageConfig": wrong}), 400
    )
    assert "checkpoint_storage.buckt" in said
    # As Determined's client sends what its user does not name.
    nothing = dict.fromkeys(("checkpointStorageConfig", "agentUserGroup", "defaultAuxPool"))
    same = ok(await user.patch(f"{API}/{one['id']}", json=nothing))["workspace"]
    assert same["checkpointStorageConfig"] == one["checkpointStorageConfig"]
    cleared = ok(await user.patch(f"{API}/{one['id']}", json={"checkpointStorageConfig": {}}))
    assert cleared["workspace"]["checkpointStorageConfig"] is None
    pool = await user.patch(f"{API}/{one['id']}", json={"defaultComputePool": "defalt"})
    assert "did you mean 'default'" in refused(pool, 400)


async def test_projects_have_keys_and_notes(
    user: httpx.AsyncClient, other: httpx.AsyncClient
) -> None:
    one = await made(user)
    cats = await project(user, one["id"], "cats & dogs")
    assert (cats["key"], cats["workspaceName"], cats["numExperiments"]) == ("CAT", "vision", 0)
    path = f"{API}/{one['id']}/projects"
    brief = ok(await user.get(path, params={"brief": True}))["projects"]
    assert [each["name"] for each in brief] == ["cats & dogs"]
    assert "numExperiments" not in brief[0]
    dogs = await project(other, one["id"], "cat food", description="d")
    assert dogs["key"].startswith("CA") and len(dogs["key"]) == 5
    body = {"name": "x", "key": "CAT"}
    assert "key 'CAT' is that of another" in refused(
        await user.post(f"{API}/{one['id']}/projects", json=body), 409
    )
    assert "capital letters" in refused(
        await user.post(f"{API}/{one['id']}/projects", json=body | {"key": "c-1"}), 400
    )
    assert ok(await user.get(f"{PROJECTS}/key/CAT"))["project"]["id"] == cats["id"]
    path = f"{PROJECTS}/{cats['id']}"
    ok(await user.patch(path, json={"key": "CATS", "name": "cats", "description": "meow"}))
    found = ok(await user.get(path))["project"]
    assert (found["key"], found["name"], found["description"]) == ("CATS", "cats", "meow")
    note = {"name": "Plan", "contents": "# all"}
    assert ok(await user.post(f"{path}/notes", json=note))["notes"] == [note]
    assert ok(await user.post(f"{path}/notes", json=note))["notes"] == [note, note]
    assert ok(await user.put(f"{path}/notes", json={"notes": []}))["notes"] == []
    assert "only its owner" in refused(await other.put(f"{path}/notes", json={"notes": []}), 403)
    listed = ok(await user.get(f"{API}/{one['id']}/projects", params={"name": "FOOD"}))
    assert [each["id"] for each in listed["projects"]] == [dogs["id"]]


async def test_ten_notes_at_once_are_ten(user: httpx.AsyncClient) -> None:
    cats = await project(user, (await made(user))["id"])
    path = f"{PROJECTS}/{cats['id']}/notes"
    for answer in await asyncio.gather(
        *(user.post(path, json={"name": str(i), "contents": ""}) for i in range(10))
    ):
        ok(answer)
    found = ok(await user.get(f"{PROJECTS}/{cats['id']}"))["project"]["notes"]
    assert sorted(int(one["name"]) for one in found) == list(range(10))


async def test_archived_ones_do_not_change(user: httpx.AsyncClient, world: World) -> None:
    one = await made(user)
    cats = await project(user, one["id"])
    experiment = await world.experiment(state="COMPLETED")
    ok(await user.post(f"{API}/{one['id']}/archive"))
    assert ok(await user.get(f"{PROJECTS}/{cats['id']}"))["project"]["archived"] is True
    assert "archived" in refused(
        await user.post(f"{API}/{one['id']}/projects", json={"name": "x"}), 409
    )
    assert "archived" in refused(await user.patch(f"{API}/{one['id']}", json={"name": "x"}), 409)
    assert "archived" in refused(
        await user.patch(f"{PROJECTS}/{cats['id']}", json={"name": "x"}), 409
    )
    move = {"destinationProjectId": cats["id"]}
    said = refused(await user.post(f"/api/v1/experiments/{experiment}/move", json=move), 409)
    assert "workspace 'vision' is archived" in said and "unarchive" in said
    ok(await user.post(f"{API}/{one['id']}/unarchive"))
    ok(await user.post(f"{PROJECTS}/{cats['id']}/archive"))
    said = refused(await user.post(f"/api/v1/experiments/{experiment}/move", json=move), 409)
    assert "project 'cats' is archived" in said
    ok(await user.post(f"{PROJECTS}/{cats['id']}/unarchive"))
    ok(await user.post(f"/api/v1/experiments/{experiment}/move", json=move))


async def test_experiments_move_one_by_one_and_together(
    user: httpx.AsyncClient, other: httpx.AsyncClient, world: World
) -> None:
    one = await made(user)
    cats, dogs = await project(user, one["id"]), await project(user, one["id"], "dogs")
    ids = [await world.experiment(f"e{i}") for i in range(3)]
    path = f"/api/v1/experiments/{ids[0]}/move"
    ok(await user.post(path, json={"destinationProjectId": cats["id"]}))
    found = ok(await user.get(f"/api/v1/experiments/{ids[0]}"))["experiment"]
    assert (found["projectId"], found["projectName"]) == (cats["id"], "cats")
    assert (found["workspaceId"], found["workspaceName"]) == (one["id"], "vision")
    assert "only its owner" in refused(
        await other.post(path, json={"destinationProjectId": 1}), 403
    )
    assert "destinationProjectId: project 999999 does not exist" in refused(
        await user.post(path, json={"destinationProjectId": 999999}), 400
    )
    body = {"destinationProjectId": dogs["id"], "experimentIds": ids}
    results = ok(await user.post(f"{PROJECTS}/1/experiments/move", json=body))["results"]
    assert [(each["id"], each["error"]) for each in results] == [
        (ids[0], f"experiment {ids[0]} is not in project 1"),
        (ids[1], ""),
        (ids[2], ""),
    ]
    body = {"destinationProjectId": cats["id"], "experimentIds": [], "filters": {"name": "e1"}}
    path = f"{PROJECTS}/{dogs['id']}/experiments/move"
    results = ok(await user.post(path, json=body))["results"]
    assert results == [{"id": ids[1], "error": ""}]
    assert ok(await user.get(f"{PROJECTS}/{cats['id']}"))["project"]["numExperiments"] == 2


async def test_a_project_moves_with_its_experiments(user: httpx.AsyncClient, world: World) -> None:
    one, two = await made(user), await made(user, "speech")
    cats = await project(user, one["id"])
    experiment = await world.experiment(project_id=cats["id"])
    path = f"{PROJECTS}/{cats['id']}/move"
    await project(user, two["id"], "CATS")
    body = {"destinationWorkspaceId": two["id"]}
    assert "already" in refused(await user.post(path, json=body), 409)
    ok(await user.patch(f"{PROJECTS}/{cats['id']}", json={"name": "lions"}))
    ok(await user.post(path, json=body))
    found = ok(await user.get(f"/api/v1/experiments/{experiment}"))["experiment"]
    assert found["workspaceName"] == "speech"
    assert "cluster's own" in refused(
        await user.post(path, json={"destinationWorkspaceId": 1}), 409
    )


async def test_a_bound_pool_is_for_its_workspaces_alone(
    user: httpx.AsyncClient, admin: httpx.AsyncClient, world: World
) -> None:
    async with world.db.tx() as conn:
        await conn.execute(sa.text("INSERT INTO pools (name) VALUES ('gpu')"))
    one, two = await made(user), await made(user, "speech")
    path = "/api/v1/resource-pools/gpu/workspace-bindings"
    body = {"workspaceNames": ["vision"]}
    assert "only an administrator" in refused(await user.post(path, json=body), 403)
    default = "/api/v1/resource-pools/default/workspace-bindings"
    assert "default pool" in refused(await admin.post(default, json=body), 400)
    ok(await admin.post(path, json=body))
    assert ok(await user.get(path))["workspaceIds"] == [one["id"]]

    async def pools(of: int) -> list[str]:
        found = ok(await user.get(f"{API}/{of}/available-resource-pools"))
        return list(found["resourcePools"])

    assert "gpu" in await pools(one["id"]) and "gpu" not in await pools(two["id"])
    change = {"defaultComputePool": "gpu"}
    said = refused(await user.patch(f"{API}/{two['id']}", json=change), 400)
    assert "resource pool 'gpu' is bound" in said and "'speech' is none" in said
    ok(await user.patch(f"{API}/{one['id']}", json=change))
    ok(await admin.put(path, json={"workspaceIds": [two["id"]]}))
    assert ok(await user.get(path))["workspaceIds"] == [two["id"]]
    ok(await admin.request("DELETE", path, json={"workspaceIds": [two["id"]]}))
    assert "gpu" in await pools(one["id"])
    missing = await admin.post(path, json={"workspaceNames": ["visoin"]})
    assert "did you mean 'vision'" in refused(missing, 404)


async def test_an_experiment_stays_where_its_pool_is(
    user: httpx.AsyncClient, admin: httpx.AsyncClient, world: World
) -> None:
    async with world.db.tx() as conn:
        await conn.execute(sa.text("INSERT INTO pools (name) VALUES ('gpu')"))
    one, two = await made(user), await made(user, "speech")
    cats, words = await project(user, one["id"]), await project(user, two["id"], "words")
    path = "/api/v1/resource-pools/gpu/workspace-bindings"
    ok(await admin.post(path, json={"workspaceNames": ["vision"]}))
    config = {
        "name": "x",
        "entrypoint": "x",
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
        "resources": {"resource_pool": "gpu"},
        "workspace": "vision",
        "project": "cats",
    }
    submitted = {"config": json.dumps(config), "activate": False}
    experiment = ok(await user.post("/api/v1/experiments", json=submitted))["experiment"]["id"]
    move = f"/api/v1/experiments/{experiment}/move"
    there = {"destinationProjectId": words["id"]}
    said = refused(await user.post(move, json=there), 400)
    assert said.startswith(
        f"experiment {experiment} cannot be moved to workspace 'speech': resource pool"
    )
    assert "'speech' is none of them (allowed: default)" in said
    whole, speech = f"{PROJECTS}/{cats['id']}/move", {"destinationWorkspaceId": two["id"]}
    said = refused(await user.post(whole, json=speech), 400)
    assert said.startswith(
        f"project 'cats' cannot be moved to workspace 'speech', because experiment {experiment} has not "
        "ended: resource pool 'gpu' is bound to workspaces"
    )
    found = ok(await user.get(f"{PROJECTS}/{cats['id']}"))["project"]
    assert found["workspaceId"] == one["id"]
    dogs = await project(user, one["id"], "dogs")
    ok(await user.post(move, json={"destinationProjectId": dogs["id"]}))
    # Without the experiment it goes, and comes back.
    ok(await user.post(whole, json=speech))
    ok(await user.post(whole, json={"destinationWorkspaceId": one["id"]}))
    ok(await admin.post(path, json={"workspaceNames": ["speech"]}))
    ok(await user.post(move, json=there))
    # What has ended moves, and its pool is asked for when it goes on.
    async with world.db.tx() as conn:
        await conn.execute(
            sa.update(experiments).where(experiments.c.id == experiment).values(state="CANCELED")
        )
    ok(await admin.put(path, json={"workspaceIds": [one["id"]]}))
    said = refused(await user.post("/api/v1/experiments/continue", json={"id": experiment}), 400)
    assert "'speech' is none of them" in said
    ok(await user.post(move, json={"destinationProjectId": cats["id"]}))
    ok(await user.post("/api/v1/experiments/continue", json={"id": experiment}))


async def remaining(world: World, table: sa.Table, one: int) -> Any:
    rows = await world.rows(sa.select(table).where(table.c.id == one))
    return rows[0] if rows else None


async def finish(world: World, experiment_id: int) -> None:
    """What the run of a deletion does at its end."""
    async with changing(world.db) as change:
        await erasure.erase(change, experiment_id)


async def test_a_workspace_goes_with_all_that_is_in_it(
    user: httpx.AsyncClient, world: World
) -> None:
    one = await made(user)
    cats = await project(user, one["id"])
    experiment = await world.experiment(state="ACTIVE", project_id=cats["id"])
    ok(await user.post("/api/v1/templates/mine", json={"config": {}, "workspaceId": one["id"]}))
    task = str(uuid.uuid4())
    async with world.db.tx() as conn:
        owner = sa.select(experiments.c.owner_id).where(experiments.c.id == experiment)
        await conn.execute(
            sa.insert(tasks).values(
                id=task,
                kind="COMMAND",
                state="ACTIVE",
                owner_id=owner.scalar_subquery(),
                workspace_id=one["id"],
                config={},
            )
        )
    path = f"{API}/{one['id']}"
    contents = ok(await user.get(f"{path}/contents"))["contents"]
    assert (contents["experiments"], contents["running"], contents["templates"]) == (1, 1, 1)
    assert (contents["tasks"], contents["runningTasks"]) == (0, 1)
    said = refused(await user.delete(path), 409)
    assert f"experiments run in it ({experiment})" in said
    async with world.db.tx() as conn:
        await conn.execute(sa.update(experiments).values(state="COMPLETED"))
    assert "tasks run in it" in refused(await user.delete(path), 409)
    async with world.db.tx() as conn:
        await conn.execute(sa.update(tasks).values(state="COMPLETED"))
    assert ok(await user.delete(path)) == {"completed": False}
    assert ok(await user.delete(path)) == {"completed": False}
    found = ok(await user.get(path))["workspace"]
    assert found["state"] == "WORKSPACE_STATE_DELETING"
    other = await world.experiment(state="COMPLETED")
    move = {"destinationProjectId": cats["id"]}
    said = refused(await user.post(f"/api/v1/experiments/{other}/move", json=move), 409)
    assert "is being deleted" in said
    await places.remove(world.db)
    assert (await remaining(world, experiments, experiment)).state == "DELETING"
    # Another pass, as after a kill, does nothing twice.
    await places.remove(world.db)
    assert await remaining(world, workspaces, one["id"]) is not None
    await finish(world, experiment)
    await places.remove(world.db)
    for table, number in ((projects, cats["id"]), (workspaces, one["id"])):
        assert await remaining(world, table, number) is None
    assert await world.rows(sa.select(tasks.c.id).where(tasks.c.id == task)) == []
    assert (await user.get(path)).status_code == 404


async def test_what_cannot_be_deleted_says_why_and_may_be_asked_again(
    user: httpx.AsyncClient, world: World
) -> None:
    one = await made(user)
    cats = await project(user, one["id"])
    experiment = await world.experiment(state="COMPLETED", project_id=cats["id"])
    path = f"{API}/{one['id']}"
    ok(await user.delete(path))
    await places.remove(world.db)
    async with world.db.tx() as conn:
        of = experiments.c.id == experiment
        failed = {"state": "DELETE_FAILED", "reason": "the bucket is gone"}
        await conn.execute(sa.update(experiments).where(of).values(failed))
    await places.remove(world.db)
    found = ok(await user.get(path))["workspace"]
    assert found["state"] == "WORKSPACE_STATE_DELETE_FAILED"
    assert found["errorMessage"] == (
        f"experiment {experiment} could not be deleted: the bucket is gone"
    )
    await places.remove(world.db)
    ok(await user.delete(path))
    assert (await remaining(world, experiments, experiment)).state == "DELETING"
    await finish(world, experiment)
    await places.remove(world.db)
    assert (await user.get(path)).status_code == 404


async def test_models_have_to_leave_and_others_things_stay(
    user: httpx.AsyncClient, other: httpx.AsyncClient, admin: httpx.AsyncClient, world: World
) -> None:
    one = await made(user)
    me = ok(await user.get("/api/v1/me"))["user"]["id"]

    def make(conn: sa.Connection) -> int:
        return registry.create_model(conn, "net", me, workspace_id=one["id"])

    async with world.db.tx() as conn:
        await conn.run_sync(make)
    path = f"{API}/{one['id']}"
    assert "models are in it (net)" in refused(await user.delete(path), 409)
    move = {"destinationWorkspaceId": 1}
    ok(await user.post("/api/v1/models/net/move", json=move))
    theirs = await project(other, one["id"])
    said = refused(await user.delete(path), 403)
    assert said.startswith("nothing was deleted: only its owner kim or an administrator may")
    assert ok(await admin.delete(path)) == {"completed": False}
    await places.remove(world.db)
    await places.remove(world.db)
    assert await remaining(world, projects, theirs["id"]) is None


async def test_a_project_is_deleted_alone(user: httpx.AsyncClient, world: World) -> None:
    one = await made(user)
    cats = await project(user, one["id"])
    path = f"{PROJECTS}/{cats['id']}"
    assert ok(await user.get(f"{path}/contents"))["contents"]["projects"] == 1
    ok(await user.delete(path))
    await places.remove(world.db)
    assert (await user.get(path)).status_code == 404
    assert ok(await user.get(f"{API}/{one['id']}"))["workspace"]["numProjects"] == 0
