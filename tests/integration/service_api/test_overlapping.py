"""Sixteen writers and one reader at each place where a request changes a part of a stored value.

No change that was answered with 200 is lost, neither at the end nor temporarily.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from determined_registry.database.tables import (
    checkpoints,
    experiments,
    metric_summaries,
    mlflow_experiments,
    mlflow_runs,
    trials,
)
from tests.integration.conftest import AGENT_TOKEN, client_of
from tests.integration.service_api.test_checkpoints import store
from tests.integration.service_api.world import Leg, World
from tests.waiting import TIMEOUT_S

WRITERS = 16
API = "/api/v1"


@dataclass(frozen=True)
class Place:
    """``write`` sends the value ``says`` of the writer of that number; ``read`` gives all stored values."""

    write: Callable[[int], Awaitable[httpx.Response]]
    read: Callable[[], Awaitable[set[Any]]]
    says: Callable[[int], Any] = lambda number: f"w{number}"


@dataclass(frozen=True)
class Around:
    """The objects that a place may need: ``user`` owns the experiment of ``leg``."""

    world: World
    user: httpx.AsyncClient
    leg: Leg

    async def value(self, column: Any, where: sa.ColumnElement[bool]) -> Any:
        rows = await self.world.rows(sa.select(column).where(where))
        return rows[0][0] if rows else None

    async def of_run(self, column: str) -> Any:
        """Of the trial's row in ``mlflow_runs``, which the first change makes."""
        of = mlflow_runs.c.trial_id == self.leg.trial_id
        return await self.value(mlflow_runs.c[column], of) or {}

    async def of_checkpoint(self, name: str, column: sa.Column[Any]) -> Any:
        return await self.value(column, checkpoints.c.uuid == uuid.UUID(name))

    async def model(self) -> str:
        """The address of a new one."""
        name = f"model {uuid.uuid4().hex}"
        answer = await self.user.post(f"{API}/models", json={"name": name})
        assert answer.status_code == 200, answer.text
        return f"{API}/models/{name}"

    async def version(self, model: str, checkpoint: str) -> None:
        answer = await self.user.post(f"{model}/versions", json={"checkpointUuid": checkpoint})
        assert answer.status_code == 200, answer.text


PLACES: dict[str, Callable[[Around], Awaitable[Place]]] = {}


def place(make: Callable[[Around], Awaitable[Place]]) -> Callable[[Around], Awaitable[Place]]:
    PLACES[make.__name__] = make
    return make


def changes_of_run(around: Around, column: str, body: Callable[[int], Any]) -> Place:
    path = f"{API}/mlflow/runs/{around.leg.trial_id}"

    async def read() -> set[Any]:
        return set(await around.of_run(column))

    return Place(lambda number: around.leg.client.patch(path, json=body(number)), read)


@place
async def tags_of_a_run(around: Around) -> Place:
    return changes_of_run(around, "tags", lambda number: {"tags": {f"w{number}": "x"}})


@place
async def artifacts_of_a_run(around: Around) -> Place:
    return changes_of_run(around, "artifacts", lambda number: {"artifacts": {f"w{number}": 7}})


@place
async def inputs_of_a_run(around: Around) -> Place:
    path = f"{API}/mlflow/runs/{around.leg.trial_id}"

    async def read() -> set[Any]:
        return {one["dataset"]["name"] for one in await around.of_run("inputs")}

    def write(number: int) -> Awaitable[httpx.Response]:
        data = {"name": f"w{number}", "digest": "d"}
        return around.leg.client.patch(path, json={"inputs": [{"dataset": data}]})

    return Place(write, read)


@place
async def parameters_of_a_run(around: Around) -> Place:
    path = f"{API}/mlflow/runs/{around.leg.trial_id}/batch"

    async def read() -> set[Any]:
        return set(await around.of_run("params"))

    def write(number: int) -> Awaitable[httpx.Response]:
        body = {"params": [{"key": f"w{number}", "value": "1"}]}
        return around.leg.client.post(path, json=body)

    return Place(write, read)


@place
async def parameters_of_a_script_that_knows_only_mlflow(around: Around) -> Place:
    made = await around.user.post(f"{API}/mlflow/experiments", json={"name": "of a script"})
    path = f"{API}/mlflow/experiments/{made.json()['experimentId']}/runs"
    trial = (await around.user.post(path, json={"name": "run"})).json()["trialId"]

    async def read() -> set[Any]:
        return set(await around.value(trials.c.hparams, trials.c.id == trial))

    def write(number: int) -> Awaitable[httpx.Response]:
        body = {"params": [{"key": f"w{number}", "value": "1"}]}
        return around.user.post(f"{API}/mlflow/runs/{trial}/batch", json=body)

    return Place(write, read)


@place
async def everything_of_a_run_at_once(around: Around) -> Place:
    """By MLflow's own address; parameters, tags and metrics."""
    of = metric_summaries.c.trial_id == around.leg.trial_id

    async def read() -> set[Any]:
        metrics = await around.world.rows(sa.select(metric_summaries.c.metric).where(of))
        params, tags = await around.of_run("params"), await around.of_run("tags")
        return set(params) & set(tags) & {row.metric for row in metrics}

    def write(number: int) -> Awaitable[httpx.Response]:
        key = f"w{number}"
        body = {
            "run_id": str(around.leg.trial_id),
            "metrics": [{"key": key, "value": 0.5, "timestamp": 1700000000000, "step": 1}],
            "params": [{"key": key, "value": "1"}],
            "tags": [{"key": key, "value": "1"}],
        }
        return around.leg.client.post("/mlflow/api/2.0/mlflow/runs/log-batch", json=body)

    return Place(write, read)


@place
async def tags_of_an_experiment(around: Around) -> Place:
    path = f"{API}/mlflow/experiments/{around.leg.experiment_id}"
    of = mlflow_experiments.c.experiment_id == around.leg.experiment_id

    async def read() -> set[Any]:
        return set(await around.value(mlflow_experiments.c.tags, of) or {})

    return Place(
        lambda number: around.user.patch(path, json={"tags": {f"w{number}": "x"}}),
        read,
    )


@place
async def labels_of_an_experiment(around: Around) -> Place:
    path = f"{API}/experiments/{around.leg.experiment_id}"
    of = experiments.c.id == around.leg.experiment_id

    async def read() -> set[Any]:
        return set(await around.value(experiments.c.labels, of))

    return Place(lambda number: around.user.put(f"{path}/labels/w{number}"), read)


@place
async def configuration_of_an_experiment(around: Around) -> Place:
    """Its policy, its resources, and its texts beside it: eight fields, twice each."""
    path = f"{API}/experiments/{around.leg.experiment_id}"
    of = experiments.c.id == around.leg.experiment_id
    policy = ("saveExperimentBest", "saveTrialBest", "saveTrialLatest")
    stored = ("save_experiment_best", "save_trial_best", "save_trial_latest")
    fields: list[dict[str, Any]] = [
        *({"checkpointStorage": {name: 7}} for name in policy),
        *({"resources": {name: 7}} for name in ("priority", "weight", "maxSlots")),
        {"notes": "7"},
        {"description": "7"},
    ]

    async def read() -> set[Any]:
        (row,) = await around.world.rows(sa.select(experiments).where(of))
        storage, resources = row.config["checkpoint_storage"], row.config["resources"]
        found = [storage.get(name) for name in stored]
        found += [resources.get(name) for name in ("priority", "weight", "max_slots")]
        found += [row.notes, row.description]
        return {place for place, value in enumerate(found) if value in (7, "7")}

    return Place(
        lambda number: around.user.patch(path, json=fields[number % 8]),
        read,
        says=lambda number: number % 8,
    )


@place
async def metadata_of_a_checkpoint(around: Around) -> Place:
    name = await store(around.leg, 1, metadata={"steps_completed": 1, "draft": True})
    path = f"{API}/checkpoints/{name}/metadata"

    async def read() -> set[Any]:
        return set(await around.of_checkpoint(name, checkpoints.c.user_metadata))

    def write(number: int) -> Awaitable[httpx.Response]:
        body = {"metadata": {f"w{number}": 1}, "remove": ["draft"]}
        return around.user.patch(path, json=body)

    return Place(write, read)


@place
async def metadata_of_a_checkpoint_that_is_reported_again(around: Around) -> Place:
    name = await store(around.leg, 1)
    path = f"{API}/checkpoints/{name}/metadata"

    async def read() -> set[Any]:
        return set(await around.of_checkpoint(name, checkpoints.c.user_metadata))

    async def write(number: int) -> httpx.Response:
        answer = await around.user.patch(path, json={"metadata": {f"w{number}": 1}})
        await store(around.leg, 1, name)
        return answer

    return Place(write, read)


@place
async def tags_and_parameters_of_a_logged_model(around: Around) -> Place:
    """Of a checkpoint without earlier metadata."""
    name = await store(around.leg, 1)
    path = f"{API}/mlflow/models/{name}"

    async def read() -> set[Any]:
        metadata = await around.of_checkpoint(name, checkpoints.c.user_metadata)
        said = metadata.get("mlflow", {"params": {"lr": 0}, "tags": {}})
        assert "lr" in said["params"], "what was shown before is gone"
        return {*said["params"], *said["tags"]}

    def write(number: int) -> Awaitable[httpx.Response]:
        of = "tags" if number % 2 else "params"
        return around.user.patch(path, json={of: {f"w{number}": "1"}})

    return Place(write, read)


@place
async def files_of_a_checkpoint(around: Around) -> Place:
    """Each deletes one file, and has seen the files of all others."""
    files = {f"w{number}": "1" for number in range(WRITERS)} | {"kept": "1"}
    name = await store(around.leg, 1, resources=files)

    async def read() -> set[Any]:
        return files.keys() - set(await around.of_checkpoint(name, checkpoints.c.resources))

    def write(number: int) -> Awaitable[httpx.Response]:
        left = {path: size for path, size in files.items() if path != f"w{number}"}
        body = {"checkpoints": [{"uuid": name, "resources": {"resources": left}}]}
        return around.leg.client.patch(f"{API}/checkpoints", json=body)

    return Place(write, read)


@place
async def metadata_of_a_model(around: Around) -> Place:
    path = await around.model()

    async def read() -> set[Any]:
        return set((await around.user.get(path)).json()["model"]["metadata"])

    return Place(
        lambda number: around.user.patch(f"{path}/metadata", json={"metadata": {f"w{number}": 1}}),
        read,
    )


@place
async def tags_of_a_model(around: Around) -> Place:
    path = await around.model()

    async def read() -> set[Any]:
        return set((await around.user.get(path)).json()["model"]["tags"])

    return Place(
        lambda number: around.user.patch(f"{path}/tags", json={"tags": {f"w{number}": "1"}}), read
    )


@place
async def versions_of_a_model(around: Around) -> Place:
    path = await around.model()
    names = [await store(around.leg, step) for step in range(WRITERS)]

    async def read() -> set[Any]:
        found = (await around.user.get(f"{path}/versions?limit=-1")).json()["modelVersions"]
        assert len({one["version"] for one in found}) == len(found)
        return {one["checkpoint"]["uuid"] for one in found}

    def write(number: int) -> Awaitable[httpx.Response]:
        return around.user.post(f"{path}/versions", json={"checkpointUuid": names[number]})

    return Place(write, read, says=lambda number: names[number])


@place
async def tags_of_a_version(around: Around) -> Place:
    path = await around.model()
    await around.version(path, await store(around.leg, 1))
    version = f"{path}/versions/1"

    async def read() -> set[Any]:
        return set((await around.user.get(version)).json()["modelVersion"]["tags"])

    return Place(
        lambda number: around.user.patch(f"{version}/tags", json={"tags": {f"w{number}": "1"}}),
        read,
    )


@place
async def aliases_of_a_model(around: Around) -> Place:
    path = await around.model()
    await around.version(path, await store(around.leg, 1))

    async def read() -> set[Any]:
        return set((await around.user.get(path)).json()["model"]["aliases"])

    return Place(
        lambda number: around.user.put(f"{path}/aliases/w{number}", json={"version": 1}), read
    )


@place
async def fields_of_a_user(around: Around) -> Place:
    agent = client_of(around.world.app, AGENT_TOKEN)
    around.world.clients.append(agent)
    made = await agent.post(f"{API}/users", json={"user": {"username": "several"}})
    path = f"{API}/users/{made.json()['user']['id']}"
    fields: list[dict[str, Any]] = [
        {"displayName": "w"},
        {"admin": True},
        {"remote": True},
        {"agentUserGroup": {"agentUid": 7, "agentGid": 7, "agentUser": "w", "agentGroup": "w"}},
    ]

    async def read() -> set[Any]:
        found = (await agent.get(path)).json()["user"]
        account = found.get("agentUserGroup") or {}
        values = (
            found["displayName"] == "w",
            found["admin"],
            found["remote"],
            account.get("agentUid") == 7,
        )
        return {number for number, value in enumerate(values) if value}

    return Place(
        lambda number: agent.patch(path, json=fields[number % 4]),
        read,
        says=lambda number: number % 4,
    )


async def surroundings(world: World, user: httpx.AsyncClient) -> Around:
    config = {
        "searcher": {"name": "random", "metric": "loss"},
        "hyperparameters": {},
        "checkpoint_storage": {"type": "shared_fs", "host_path": "/data"},
        "resources": {"slots_per_trial": 1},
    }
    return Around(world, user, await world.leg(config=config))


async def write(at: Place, number: int) -> None:
    answer = await at.write(number)
    assert answer.status_code == 200, answer.text


async def lost(at: Place) -> set[Any]:
    return {at.says(number) for number in range(WRITERS)} - await at.read()


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES.keys())
async def test_nothing_is_lost(
    make: Callable[[Around], Awaitable[Place]], world: World, user: httpx.AsyncClient
) -> None:
    at = await make(await surroundings(world, user))
    answered: set[Any] = set()
    over = asyncio.Event()

    async def write_and_note(number: int) -> None:
        await write(at, number)
        answered.add(at.says(number))

    async def read() -> None:
        while not over.is_set():
            before = set(answered)
            found = await at.read()
            assert before <= found, f"answered, and gone: {sorted(map(str, before - found))}"

    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        group.create_task(read())
        await asyncio.gather(*(write_and_note(number) for number in range(WRITERS)))
        over.set()
    assert await lost(at) == set()


async def test_no_two_of_them_wait_for_each_other(world: World, user: httpx.AsyncClient) -> None:
    """All writers of all places at once, about one experiment: rows are locked in one order."""
    around = await surroundings(world, user)
    places = [await make(around) for make in PLACES.values()]
    turns = [(at, number) for number in range(WRITERS) for at in places]
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(write(at, number) for at, number in turns))
    for at in places:
        assert await lost(at) == set()
