"""Runs: search, columns, and actions on many."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from determined_registry.database.tables import experiments, trials
from tests.integration.conftest import client_of
from tests.integration.service_api.world import World, report

RUNS = "/api/v1/runs"
SINGLE = {
    "searcher": {"name": "single", "metric": "loss"},
    "resources": {"resource_pool": "default"},
}


@dataclass(frozen=True)
class Table:
    """Runs: `first` and `second` of a search, `alone` of a single experiment that has ended."""

    search: int
    first: int
    second: int
    single: int
    alone: int


@pytest.fixture
async def table(world: World) -> Table:
    search = await world.experiment("search", labels=["blue"])
    first, request_id = await world.trial(search, hparams={"lr": 0.1, "net": {"depth": 3}})
    second, _ = await world.trial(search, hparams={"lr": 0.01, "name": "b"}, state="COMPLETED")
    leg = await world.start(search, first, request_id)
    await leg.store(report(1, "validation", loss=0.5), report(2, "validation", loss=0.25))
    single = await world.experiment("alone", config=SINGLE, state="COMPLETED")
    alone, _ = await world.trial(
        single, hparams={"lr": 1}, state="COMPLETED", run_metadata={"note": {"by": "kim"}}
    )
    return Table(search, first, second, single, alone)


@pytest.fixture
async def stranger(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(world.app, None) as client:
        login = {"username": "admin", "password": "", "isHashed": True}
        answer = (await client.post("/api/v1/auth/login", json=login)).raise_for_status()
        client.headers["Authorization"] = f"Bearer {answer.json()['token']}"
        user = {"user": {"username": "kim", "active": True}}
        (await client.post("/api/v1/users", json=user)).raise_for_status()
        login["username"] = "kim"
        answer = (await client.post("/api/v1/auth/login", json=login)).raise_for_status()
        client.headers["Authorization"] = f"Bearer {answer.json()['token']}"
        yield client


def field(name: str, operator: str, value: Any = None) -> dict[str, Any]:
    return {"kind": "field", "columnName": name, "operator": operator, "value": value}


def of(*children: Any, conjunction: str = "and", archived: bool = False) -> str:
    group = {"kind": "group", "conjunction": conjunction, "children": list(children)}
    return json.dumps({"filterGroup": group, "showArchived": archived})


async def ids(user: httpx.AsyncClient, **asked: Any) -> list[int]:
    answer = await user.post(RUNS, json=asked)
    assert answer.status_code == 200, answer.text
    return [run["id"] for run in answer.json()["runs"]]


async def test_a_run_has_what_is_known_of_its_experiment(
    user: httpx.AsyncClient, table: Table
) -> None:
    answer = (await user.post(RUNS, json={"sort": "id=asc", "limit": 1})).json()
    assert answer["pagination"]["total"] == 3
    (run,) = answer["runs"]
    assert (run["id"], run["hyperparameters"]["lr"]) == (table.first, 0.1)
    assert run["summaryMetrics"]["validation_metrics"]["loss"]["min"] == 0.25
    assert (run["projectName"], run["workspaceName"]) == ("Uncategorized", "Uncategorized")
    found = run["experiment"]
    assert (found["id"], found["name"], found["isMultitrial"]) == (table.search, "search", True)


async def test_runs_are_filtered(user: httpx.AsyncClient, table: Table) -> None:
    first, second, alone = table.first, table.second, table.alone
    for filter_, expected in (
        (of(), [alone, second, first]),
        (of(field("id", "=", first)), [first]),
        (of(field("hp.lr", "<", 0.5)), [second, first]),
        (of(field("hp.lr", "!=", 1)), [second, first]),
        (of(field("hp.net.depth", ">=", 3)), [first]),
        (of(field("hp.name", "=", "b")), [second]),
        (of(field("hp.name", "contains", "B")), [second]),
        (of(field("hp.name", "isEmpty")), [alone, first]),
        (of(field("metadata.note.by", "=", "kim")), [alone]),
        (of(field("validation.loss.min", "<", 0.3)), [first]),
        (of(field("validation.loss", "notEmpty")), [first]),
        (of(field("tags", "contains", "blue")), [second, first]),
        (of(field("tags", "isEmpty")), [alone]),
        (of(field("tags", "notContains", "blue")), [alone]),
        (of(field("experimentName", "contains", "SEAR")), [second, first]),
        (of(field("state", "=", "STATE_COMPLETED")), [alone, second]),
        (of(field("user", "=", "determined")), [alone, second, first]),
        (of(field("user", "=", -5)), []),
        (of(field("startTime", ">", "2000-01-01T00:00:00Z")), [alone, second, first]),
        (of(field("searcherType", "=", "single"), field("id", "=", first)), []),
        (
            of(field("id", "=", alone), of_group(field("id", "=", first)), conjunction="or"),
            [alone, first],
        ),
    ):
        assert await ids(user, filter=filter_) == expected, filter_
    assert await ids(user, projectId=1, sort="hp.lr=asc") == [second, first, alone]
    by_loss = await ids(user, sort="validation.loss.last=desc,id=asc")
    assert by_loss == [first, second, alone]
    assert await ids(user, projectId=77) == []


def of_group(*children: Any) -> dict[str, Any]:
    return {"kind": "group", "conjunction": "and", "children": list(children)}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"filter": "{"}, "filter: it is not JSON"),
        ({"filter": "[]"}, "filter: expected an object"),
        ({"filter": of(1)}, "filter.filterGroup.children[0]: expected a group or a field"),
        ({"filter": of(field("nothing", "=", 1))}, "there is no column"),
        ({"filter": of(field("id", "~", 1))}, "operator: found"),
        ({"filter": of(field("id", "=", "x"))}, "expected a number"),
        ({"filter": of(field("id", "=", 10**400))}, "number is infinity"),
        ({"filter": of(field("id", "contains", "1"))}, "contains is for texts and tags"),
        ({"filter": of(field("tags", "=", "x"))}, "tags are compared by contains"),
        ({"filter": of(field("endTime", "=", "soon"))}, "must be an ISO 8601 time"),
        ({"filter": of(field("experimentName", "=", "a\0"))}, "value"),
        ({"filter": of(conjunction="xor")}, "expected and or or"),
        ({"filter": of(*[field("id", "=", 1)] * 101)}, "at most 100 conditions"),
        ({"sort": "id"}, "sort: expected COLUMN=asc"),
        ({"sort": ",".join(["id=asc"] * 11)}, "at most 10 columns"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    user: httpx.AsyncClient, asked: dict[str, Any], said: str
) -> None:
    answer = await user.post(RUNS, json=asked)
    assert (answer.status_code, said in answer.json()["message"]) == (400, True), answer.text


async def test_groups_are_nested_ten_deep(user: httpx.AsyncClient, table: Table) -> None:
    group: dict[str, Any] = of_group(field("id", "=", table.first))
    for _ in range(9):
        group = of_group(group)
    assert await ids(user, filter=json.dumps({"filterGroup": group})) == [table.first]
    deeper = json.dumps({"filterGroup": of_group(group)})
    answer = await user.post(RUNS, json={"filter": deeper})
    assert answer.status_code == 400
    assert "groups in groups are allowed 10 deep" in answer.text


async def new_project(user: httpx.AsyncClient) -> int:
    made = (await user.post("/api/v1/workspaces", json={"name": "vision"})).raise_for_status()
    path = f"/api/v1/workspaces/{made.json()['workspace']['id']}/projects"
    project = (await user.post(path, json={"name": "cats"})).raise_for_status()
    return int(project.json()["project"]["id"])


async def results(user: httpx.AsyncClient, verb: str, **body: Any) -> dict[int, str]:
    answer = await user.post(f"{RUNS}/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    return {one["id"]: one["error"] for one in answer.json()["results"]}


async def test_an_action_is_the_experiments(
    user: httpx.AsyncClient, world: World, table: Table
) -> None:
    both = [table.first, table.alone, 999]
    found = await results(user, "archive", runIds=both, projectId=1)
    assert (found[table.alone], found[999]) == ("", "not found: run 999 does not exist")
    assert (
        f"can only be killed by itself: archive its experiment {table.search}" in found[table.first]
    )
    assert await ids(user, filter=of()) == [table.second, table.first]
    assert await ids(user, filter=of(archived=True)) == [table.alone, table.second, table.first]
    alone = of(field("id", "=", table.alone), archived=True)
    assert await results(user, "unarchive", filter=alone, projectId=1) == {table.alone: ""}
    assert await results(user, "unarchive", filter=of(field("id", "=", 0))) == {}
    away = await results(user, "archive", runIds=[table.alone], projectId=77)
    assert away == {table.alone: f"run {table.alone} is not in project 77"}
    ended = await results(user, "pause", runIds=[table.alone])
    assert "COMPLETED" in ended[table.alone]
    assert await results(user, "kill", runIds=[table.first]) == {table.first: ""}
    (row,) = await world.rows(
        sa.select(experiments.c.state).where(experiments.c.id == table.search)
    )
    assert row.state == "ACTIVE"
    nothing = await user.post(f"{RUNS}/kill", json={"runIds": []})
    assert (nothing.status_code, "no runs are named" in nothing.text) == (400, True)


async def test_pausing_resuming_and_killing_a_single_run(
    user: httpx.AsyncClient, world: World
) -> None:
    experiment_id = await world.experiment("one", config=SINGLE)
    run, _ = await world.trial(experiment_id)

    async def state() -> str:
        found = sa.select(experiments.c.state).where(experiments.c.id == experiment_id)
        return str((await world.rows(found))[0].state)

    for verb, expected in (("pause", "PAUSED"), ("resume", "ACTIVE")):
        assert await results(user, verb, runIds=[run]) == {run: ""}
        assert await state() == expected
    refused = await results(user, "delete", runIds=[run])
    assert "only an experiment that has ended can be deleted" in refused[run]
    assert await results(user, "kill", runIds=[run]) == {run: ""}
    assert await state() != "ACTIVE"


async def test_a_run_is_moved_and_deleted(
    user: httpx.AsyncClient, world: World, table: Table
) -> None:
    to = await new_project(user)
    body = {"runIds": [table.alone, table.second], "sourceProjectId": 1, "destinationProjectId": to}
    found = await results(user, "move", **body)
    assert found[table.alone] == ""
    assert "can only be killed by itself" in found[table.second]
    assert await ids(user, projectId=to) == [table.alone]
    assert await results(user, "delete", runIds=[table.alone]) == {table.alone: ""}
    (row,) = await world.rows(
        sa.select(experiments.c.state).where(experiments.c.id == table.single)
    )
    assert row.state == "DELETING"


async def test_others_change_nothing(
    stranger: httpx.AsyncClient, world: World, table: Table
) -> None:
    assert await ids(stranger) == [table.alone, table.second, table.first]
    chosen = {"runIds": [table.alone, table.first]}
    for verb in ("pause", "resume", "kill", "archive", "unarchive", "delete"):
        found = await results(stranger, verb, **chosen)
        assert all(
            "only its owner determined or an administrator" in said for said in found.values()
        )
    found = await results(stranger, "move", destinationProjectId=1, **chosen)
    assert all("only its owner determined" in said for said in found.values())
    rows = await world.rows(sa.select(trials.c.state).order_by(trials.c.id))
    assert [row.state for row in rows] == ["ACTIVE", "COMPLETED", "COMPLETED"]


async def test_the_columns_of_a_project(user: httpx.AsyncClient, table: Table) -> None:
    answer = (await user.get("/api/v1/projects/1/columns")).raise_for_status().json()
    found = {one["column"]: one for one in answer["columns"]}
    assert found["id"]["type"] == "COLUMN_TYPE_NUMBER"
    assert found["hp.lr"] == {
        "column": "hp.lr",
        "type": "COLUMN_TYPE_NUMBER",
        "location": "LOCATION_TYPE_RUN_HYPERPARAMETERS",
        "displayName": "",
    }
    assert found["hp.name"]["type"] == "COLUMN_TYPE_TEXT"
    assert found["hp.net"]["type"] == "COLUMN_TYPE_UNSPECIFIED"
    assert found["metadata.note"]["location"] == "LOCATION_TYPE_RUN_METADATA"
    assert found["validation.loss.min"]["location"] == "LOCATION_TYPE_VALIDATIONS"
    # Each is good for a filter.
    for name in found:
        filter_ = of(field(name, "notEmpty"))
        assert isinstance(await ids(user, filter=filter_, sort=f"{name}=desc"), list)
    assert (await user.get("/api/v1/projects/77/columns")).status_code == 404


async def test_the_projects_that_were_looked_at(user: httpx.AsyncClient) -> None:
    cats = await new_project(user)
    path, recent = "/api/v1/users/activity", "/api/v1/user/projects/activity"
    activity = {"activityType": "ACTIVITY_TYPE_GET", "entityType": "ENTITY_TYPE_PROJECT"}
    assert (await user.get(recent)).json() == {"projects": []}
    for project_id in (cats, 1, cats):
        answer = await user.post(path, json=activity | {"entityId": project_id})
        assert (answer.status_code, answer.json()) == (200, {})
    found = (await user.get(recent)).json()["projects"]
    assert [one["id"] for one in found] == [cats, 1]
    found = (await user.get(recent, params={"limit": 1})).json()["projects"]
    assert [one["id"] for one in found] == [cats]
    assert (await user.post(path, json=activity | {"entityId": 77})).status_code == 404
    wrong = activity | {"entityId": 1, "entityType": "ENTITY_TYPE_UNSPECIFIED"}
    assert (await user.post(path, json=wrong)).status_code == 400
