"""Templates: kept, changed by whom it may concern, and merged beneath experiments and tasks."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from determined.cli.root import app
from determined.common.api.errors import (
    BadRequestException,
    ConflictException,
    NotFoundException,
)
from determined.experimental import Determined
from tests.integration.conftest import client_of
from tests.integration.roles import give, put_mode, take, workspace
from tests.waiting import until_async

API = "/api/v1/templates"
CONFIG = """
name: mine
entrypoint: python3 train.py
hyperparameters: {lr: 0.1}
searcher: {name: single, metric: loss, max_length: {batches: 5}}
environment: {environment_variables: [SHARED=mine]}
"""
SHARED: dict[str, Any] = {
    "max_restarts": 2,
    "labels": ["team"],
    "hyperparameters": {"lr": 0.9, "depth": 3},
    "searcher": {"name": "random", "max_trials": 9, "smaller_is_better": False},
    "environment": {"environment_variables": ["SHARED=template", "ONLY=template"]},
    "bind_mounts": [{"host_path": "/data", "container_path": "/data"}],
    "idle_timeout": "30m",
}


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["error"])


async def put(client: httpx.AsyncClient, name: str, config: Any = SHARED) -> Any:
    return ok(await client.post(f"{API}/{name}", json={"name": name, "config": config}))


async def complete(user: httpx.AsyncClient, **more: Any) -> Any:
    body = {"config": CONFIG, "validateOnly": True, **more}
    return ok(await user.post("/api/v1/experiments", json=body))["config"]


@pytest.fixture
async def other(user: httpx.AsyncClient, service_app: FastAPI) -> httpx.AsyncClient:
    """Another user, who is no administrator."""
    auth = "/api/v1/auth/login"
    admin = client_of(service_app, None)
    token = ok(await admin.post(auth, json={"username": "admin", "password": ""}))["token"]
    body = {"user": {"username": "kim", "active": True}, "password": "a-Long-one-1"}
    ok(await admin.post("/api/v1/users", json=body, headers={"Authorization": f"Bearer {token}"}))
    found = ok(await admin.post(auth, json={"username": "kim", "password": "a-Long-one-1"}))
    return client_of(service_app, found["token"])


async def test_a_template_from_its_beginning_to_its_end(user: httpx.AsyncClient) -> None:
    made = await put(user, "gpu")
    assert made["template"] == {
        "name": "gpu",
        "config": SHARED,
        "workspaceId": 1,
        "workspaceName": "Uncategorized",
    }
    assert "exists already" in refused(await user.post(f"{API}/gpu", json={"config": {}}), 409)
    changed = ok(await user.patch(f"{API}/gpu", json={"max_restarts": 1}))["template"]
    assert changed["config"] == {"max_restarts": 1}
    ok(await user.put(f"{API}/gpu", json={"name": "gpu", "config": {"max_restarts": 7}}))
    ok(await user.put(f"{API}/Another%20one", json={"config": {}}))
    found = ok(await user.get(API))
    assert [one["name"] for one in found["templates"]] == ["Another one", "gpu"]
    assert found["pagination"]["total"] == 2
    assert ok(await user.get(f"{API}?name=GP"))["templates"][0]["config"] == {"max_restarts": 7}
    ok(await user.delete(f"{API}/gpu"))
    assert "not found" in refused(await user.get(f"{API}/gpu"), 404)
    assert "does not exist" in refused(await user.patch(f"{API}/gpu", json={}), 404)


async def test_an_experiment_takes_what_it_does_not_set(user: httpx.AsyncClient) -> None:
    await put(user, "shared")
    found = await complete(user, template="shared")
    assert found["max_restarts"] == 2
    assert found["labels"] == ["team"]
    assert found["hyperparameters"]["lr"] == 0.1
    assert found["hyperparameters"]["depth"] == 3
    # Of another searcher only the common fields.
    assert found["searcher"]["name"] == "single"
    assert found["searcher"]["smaller_is_better"] is False
    variables = found["environment"]["environment_variables"]["cpu"]
    assert variables.index("SHARED=template") < variables.index("SHARED=mine")
    assert "ONLY=template" in variables
    assert [one["container_path"] for one in found["bind_mounts"]] == ["/data"]
    without = await complete(user)
    assert (without["max_restarts"], without["bind_mounts"]) == (5, [])
    # The same text again, with the template as it is now.
    ok(await user.patch(f"{API}/shared", json={"max_restarts": 3}))
    assert (await complete(user, template="shared"))["max_restarts"] == 3


async def test_what_is_stored_is_complete_and_stays(user: httpx.AsyncClient) -> None:
    await put(user, "shared")
    body = {"config": CONFIG, "template": "shared", "activate": False}
    made = ok(await user.post("/api/v1/experiments", json=body))["experiment"]
    ok(await user.delete(f"{API}/shared"))
    found = ok(await user.get(f"/api/v1/experiments/{made['id']}"))
    assert found["experiment"]["config"]["max_restarts"] == 2
    assert found["experiment"]["originalConfig"] == CONFIG


async def test_a_cached_submission_knows_the_template(user: httpx.AsyncClient) -> None:
    await put(user, "shared")
    body = {"config": CONFIG, "cached": True}
    plain = ok(await user.post("/api/v1/experiments", json=body))["experiment"]["id"]
    body["template"] = "shared"
    with_it = ok(await user.post("/api/v1/experiments", json=body))["experiment"]["id"]
    assert with_it != plain
    assert ok(await user.post("/api/v1/experiments", json=body))["experiment"]["id"] == with_it


async def test_a_command_takes_what_it_knows_of(user: httpx.AsyncClient) -> None:
    await put(user, "shared", {**SHARED, "resources": {"slots": 0, "slots_per_trial": 4}})
    mount = {"host_path": "/mine", "container_path": "/mine"}
    body = {
        "config": {"entrypoint": ["true"], "bind_mounts": [mount]},
        "templateName": "shared",
        "preview": True,
    }
    found = ok(await user.post("/api/v1/commands", json=body))["config"]
    assert found["resources"]["slots"] == 0
    # A list is the one or the other, as in Determined.
    assert [one["container_path"] for one in found["bind_mounts"]] == ["/mine"]
    assert "ONLY=template" in found["environment"]["environment_variables"]["cpu"]
    notebook = ok(await user.post("/api/v1/notebooks", json={**body, "config": {}}))["config"]
    assert notebook["idle_timeout"] == "30m"
    body["templateName"] = "none"
    assert "no template 'none'" in refused(await user.post("/api/v1/commands", json=body), 400)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"max_restart": 1}, "did you mean 'max_restarts'"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"searcher": {"name": "rnadom"}}, "did you mean 'random'"),
        ({"environment": {"registry_auth": {"password": "********"}}}, "registry_auth.password"),
    ],
)
async def test_a_wrong_template_is_refused(
    user: httpx.AsyncClient, config: dict[str, Any], says: str
) -> None:
    assert says in refused(await user.post(f"{API}/t", json={"config": config}), 400)
    await put(user, "t", {})
    assert says in refused(await user.patch(f"{API}/t", json=config), 400)
    assert says in refused(await user.put(f"{API}/t", json={"config": config}), 400)
    assert ok(await user.get(f"{API}/t"))["template"]["config"] == {}


@pytest.mark.parametrize("name", ["%20", "a%0Ab", "%2e%2e", "x" * 251])
async def test_a_wrong_name_is_refused(user: httpx.AsyncClient, name: str) -> None:
    answer = await user.post(f"{API}/{name}", json={"config": {}})
    assert answer.status_code in (400, 404, 405, 422), answer.text
    assert ok(await user.get(API))["templates"] == []


async def test_problems_of_both_name_their_layer(user: httpx.AsyncClient) -> None:
    await put(user, "odd", {"searcher": {"name": "adaptive_asha", "metric": "loss"}})
    body = {"config": "entrypoint: x\nsearcher: {}\n", "template": "odd", "validateOnly": True}
    assert "searcher" in refused(await user.post("/api/v1/experiments", json=body), 400)
    body["template"] = "absent"
    said = refused(await user.post("/api/v1/experiments", json=body), 400)
    assert "no template 'absent'" in said


async def test_others_use_it_and_only_its_owner_changes_it(
    user: httpx.AsyncClient, other: httpx.AsyncClient
) -> None:
    said = await put(
        user, "shared", {"environment": {"registry_auth": {"password": "hunter2hunter2"}}}
    )
    assert "every user can read" in said["remarks"][0]
    ok(await other.get(f"{API}/shared"))
    assert (await complete(other, template="shared"))["name"] == "mine"
    for request in (
        other.patch(f"{API}/shared", json={}),
        other.put(f"{API}/shared", json={"config": {}}),
        other.delete(f"{API}/shared"),
    ):
        assert "its owner determined" in refused(await request, 403)
    await put(other, "theirs", {})
    assert "its owner kim" in refused(await user.delete(f"{API}/theirs"), 403)


async def test_who_may_change_a_template_need_not_be_allowed_to_make_one(
    user: httpx.AsyncClient, other: httpx.AsyncClient, service_app: FastAPI
) -> None:
    there = await workspace(service_app, "vision")
    ok(await user.post(f"{API}/theirs", json={"config": {}, "workspaceId": there}))
    ok(await user.post(f"{API}/hidden", json={"config": {}}))
    await give(service_app, "kim", "Editor", there)
    await put_mode(service_app)
    # Without a workspace, a new one would be in Uncategorized, where kim has no role.
    found = ok(await other.put(f"{API}/theirs", json={"config": {"max_restarts": 3}}))["template"]
    assert (found["config"], found["workspaceId"]) == ({"max_restarts": 3}, there)
    said = refused(await other.put(f"{API}/new", json={"config": {}}), 403)
    assert "that needs the role Editor in workspace 'Uncategorized'" in said
    taken = {"config": {"max_restarts": 4}, "workspaceId": there}
    assert "exists already" in refused(await other.put(f"{API}/hidden", json=taken), 409)
    ok(await other.put(f"{API}/own", json=taken))
    await take(service_app, "kim")
    await give(service_app, "kim", "Viewer", there)

    async def is_refused() -> bool:
        same = {"config": {"max_restarts": 3}}
        return (await other.put(f"{API}/theirs", json=same)).status_code == 403

    await until_async("the role is taken", is_refused)
    assert "may not change" in refused(await other.put(f"{API}/theirs", json=taken), 403)
    found = ok(await other.get(f"{API}/theirs"))["template"]
    assert found["config"] == {"max_restarts": 3}


async def test_of_two_that_create_it_one_does(user: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(
        *(user.post(f"{API}/one", json={"config": {"max_restarts": n}}) for n in range(8))
    )
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [200] + [409] * 7
    won = next(n for n, answer in enumerate(answers) if answer.status_code == 200)
    assert ok(await user.get(f"{API}/one"))["template"]["config"] == {"max_restarts": won}


def test_the_sdk(own: Determined) -> None:
    made = own.create_template("a b", {"max_restarts": 1})
    with pytest.raises(ConflictException):
        own.create_template("a b", {})
    made.set_config({"max_restarts": 2})
    assert own.get_template("a b").config == {"max_restarts": 2}
    own.set_template("a b", {"max_restarts": 3, "labels": ["x"]})
    assert [one.name for one in own.list_templates()] == ["a b"]
    with pytest.raises(BadRequestException):
        own.set_template("c", {"max_restart": 1})
    sources = {one.path: one.source for one in own.get_template("a b").explain(CONFIG)}
    assert sources["max_restarts"] == "template a b"
    assert sources["labels"] == "template a b"
    assert sources["searcher.name"] == "the configuration"
    assert sources["debug"] == "default"
    assert sources["checkpoint_storage.type"] == "the cluster configuration"
    experiment = own.create_experiment(CONFIG, template="a b", paused=True)
    assert experiment.get_config()["max_restarts"] == 3
    made.delete()
    with pytest.raises(NotFoundException):
        own.get_template("a b")


def det(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_the_commands(own: Determined, tmp_path: Path) -> None:
    file, config = tmp_path / "t.yaml", tmp_path / "e.yaml"
    file.write_text("max_restarts: 4\nenvironment: {environment_variables: [A=1]}\n")
    config.write_text(CONFIG)
    assert det("template", "create", "t", str(file)).exit_code == 0
    assert det("tpl").stdout.split() == ["Name", "Workspace", "t", "Uncategorized"]
    assert "max_restarts: 4" in det("tpl", "describe", "t").stdout
    assert "max_restarts: 4" in det("tpl", "list", "-d").stdout
    shown = det("tpl", "apply", "--dry-run", "t", str(config), "--csv").stdout
    assert "max_restarts,4,template t" in shown
    assert "the configuration and template t" in shown
    every = det("tpl", "apply", "--dry-run", "t", str(config))
    assert "the cluster configuration" in every.stdout
    shown = det("tpl", "apply", "t", str(config))
    _, *rows = [line.split()[0] for line in shown.stdout.splitlines()]
    kinds = [f"environment.environment_variables.{kind}" for kind in ("cpu", "cuda", "rocm")]
    assert sorted(rows) == [*kinds, "max_restarts"]
    others = len(every.stdout.splitlines()) - 1 - len(rows)
    counts = re.findall(r"(\d+) from", shown.stderr)
    assert (sum(map(int, counts)), "from default" in shown.stderr) == (others, True)
    file.write_text("max_restrats: 4\n")
    wrong = det("tpl", "set-value", "config", "t", str(file))
    assert wrong.exit_code == 1
    assert f"{file}:1: max_restrats" in wrong.stderr
    file.write_text("max_restarts: 6\n")
    assert det("tpl", "set", "t", str(file)).exit_code == 0
    created = det("e", "create", str(config), "--template", "t", "--paused")
    assert created.exit_code == 0, created.stderr
    number = int(created.stdout.split()[-1])
    assert own.get_experiment(number).get_config()["max_restarts"] == 6
    launched = det("cmd", "run", "--template", "t", "-d", "true")
    assert launched.exit_code == 0, launched.stderr
    assert det("tpl", "rm", "t").exit_code == 0
    assert det("tpl", "describe", "t").exit_code == 1
