"""Quotas: how much one user may have at a time, and the refusals above them.

Without them one user could fill the database, or queues in which others wait.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import httpx
import orjson
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import (
    experiments,
    log_sizes,
    model_definitions,
    task_logs,
    tasks,
    trials,
    user_sessions,
)
from determined_service.access.sessions import SEEN
from determined_service.deleting.erasure import erase
from determined_service.ingest import log_room
from determined_service.state.change import changing
from tests.integration.conftest import client_of
from tests.integration.quotas import put_quotas
from tests.integration.service_api.test_task_logs import line, read, send, texts
from tests.integration.service_api.test_unmanaged import say
from tests.integration.service_api.world import Leg, World
from tests.waiting import until_async

Allow = Callable[..., Awaitable[None]]
Answers = Coroutine[Any, Any, httpx.Response]


@pytest.fixture
def allow(service_app: FastAPI) -> Allow:
    """Puts quotas into force."""

    return functools.partial(put_quotas, service_app)


@pytest.fixture
async def ada(service_app: FastAPI, agent: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """A client of another user."""
    made = {"user": {"username": "ada"}, "password": "p"}
    assert (await agent.post("/api/v1/users", json=made)).status_code == 200
    async with client_of(service_app, await log_in(service_app)) as client:
        yield client


async def log_in(app: FastAPI) -> str:
    async with client_of(app, None) as client:
        login = {"username": "ada", "password": "p"}
        answer = await client.post("/api/v1/auth/login", json=login)
    assert answer.status_code == 200, answer.text
    token: str = answer.json()["token"]
    return token


def submission(trials: int = 1, content: bytes = b"", **more: Any) -> dict[str, Any]:
    searcher = {"name": "random", "metric": "loss", "max_length": {"batches": 1}}
    config = {
        "name": "many",
        "entrypoint": "python3 train.py",
        "hyperparameters": {"x": {"type": "int", "minval": 1, "maxval": 1000}},
        "searcher": {**searcher, "max_trials": 50, "max_concurrent_trials": trials},
    }
    code = {"path": "train.py", "type": 48, "content": base64.b64encode(content).decode()}
    return {"config": json.dumps(config), "modelDefinition": [code], **more}


async def submit(client: httpx.AsyncClient, **what: Any) -> httpx.Response:
    return await client.post("/api/v1/experiments", json=submission(**what))


async def launch(client: httpx.AsyncClient) -> httpx.Response:
    config = {"entrypoint": ["true"], "resources": {"slots": 0}}
    return await client.post("/api/v1/commands", json={"config": config})


def new_id(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["experiment"]["id"]
    return found


def refused(answer: httpx.Response, *said: str) -> None:
    assert answer.status_code == 403, answer.text
    error = answer.json()["error"]
    assert error["reason"] == "ResourceExhausted"
    for words in (*said, "an administrator, who may raise it in the cluster configuration"):
        assert words in error["error"]


async def race(asked: list[Answers], places: int, *said: str) -> None:
    answers = await asyncio.gather(*asked)
    passed = [one for one in answers if one.status_code == 200]
    assert len(passed) == places
    for answer in answers:
        if answer not in passed:
            refused(answer, *said)


async def test_sixteen_experiments_for_the_last_four_places(
    user: httpx.AsyncClient, ada: httpx.AsyncClient, world: World, allow: Allow
) -> None:
    await allow(experiments=5)
    first = new_id(await submit(user))
    await race(
        [submit(user) for _ in range(16)],
        4,
        "user determined would have 6 experiments that have not ended, and at most 5 are allowed "
        "(quotas.experiments)",
        "det experiment kill ID",
    )
    assert len(await world.rows(sa.select(experiments.c.id))) == 5
    # Another user has a separate quota; ending an experiment frees a place.
    new_id(await submit(ada))
    assert (await user.post(f"/api/v1/experiments/{first}/kill")).status_code == 200
    new_id(await submit(user))
    refused(await submit(user), "quotas.experiments")
    # Continuing an ended experiment takes a place, too, for any caller.
    assert (await user.post("/api/v1/experiments/continue", json={"id": first})).status_code == 403
    await allow(experiments=6)
    new_id(await user.post("/api/v1/experiments/continue", json={"id": first}))


async def test_a_submission_that_is_repeated_is_answered_and_not_counted(
    user: httpx.AsyncClient, allow: Allow
) -> None:
    await allow(experiments=1)
    key = {"idempotencyKey": "one"}
    made = new_id(await submit(user, **key))
    assert new_id(await submit(user, **key)) == made
    refused(await submit(user), "quotas.experiments")


async def test_trials_are_counted_when_a_search_begins_and_never_end_one(
    user: httpx.AsyncClient, agent: httpx.AsyncClient, world: World, allow: Allow
) -> None:
    await allow(trials=8)
    experiment_id = new_id(await submit(user, trials=5))
    await race(
        [submit(user, trials=1) for _ in range(8)],
        3,
        "user determined would have 9 trials that have not ended, and at most 8 are allowed (quotas.trials)",
        "searcher.max_concurrent_trials",
    )
    # The search that runs gets its further trials.
    path = f"/internal/v1/experiments/{experiment_id}/search"
    driver = str(uuid.uuid4())
    attached = {"driver": driver, "flow_run_id": str(uuid.uuid4())}
    assert (await agent.post(f"{path}/attach", json=attached)).status_code == 200
    created = {"type": "create", "request_id": str(uuid.uuid4()), "hparams": {"x": 1}, "seed": 1}
    commit = {"driver": driver, "last_event_id": 1, "operations": [created], "snapshot": {}}
    answer = await agent.post(f"{path}/commit", json=commit)
    assert answer.status_code == 200, answer.text
    assert len(await world.rows(sa.select(trials.c.id))) == 9
    refused(await submit(user), "would have 10 trials")


async def test_a_custom_search_asks_again_when_there_is_room(
    user: httpx.AsyncClient, world: World, allow: Allow
) -> None:
    await allow(trials=2)
    given = submission()
    config = json.loads(given["config"])
    config["searcher"] = {"name": "custom", "metric": "loss", "unit": "batches"}
    made = await user.post("/api/v1/experiments", json=given | {"config": json.dumps(config)})
    path = f"/api/v1/experiments/{new_id(made)}"
    (event,) = (await user.get(f"{path}/searcher_events")).json()["searcherEvents"]

    def answer(count: int) -> dict[str, Any]:
        new = [
            {"createTrial": {"requestId": str(uuid.uuid4()), "hyperparams": '{"x": 1}'}}
            for _ in range(count)
        ]
        return {"triggeredByEvent": {"id": event["id"]}, "searcherOperations": new}

    refused(await user.post(f"{path}/searcher_operations", json=answer(3)), "would have 3 trials")
    assert await world.rows(sa.select(trials.c.id)) == []
    assert (await user.get(path)).json()["experiment"]["state"] != "STATE_ERROR"
    taken = await user.post(f"{path}/searcher_operations", json=answer(2))
    assert taken.status_code == 200, taken.text
    assert len(await world.rows(sa.select(trials.c.id))) == 2


async def test_unmanaged_trials(user: httpx.AsyncClient, allow: Allow) -> None:
    await allow(experiments=1, trials=2)
    config = submission()["config"]

    async def put(name: str) -> httpx.Response:
        path = f"/api/v1/experiments/by-external-id/{name}"
        return await user.put(path, json={"config": config, "unmanaged": True})

    async def trial(name: str) -> httpx.Response:
        new = {"experimentId": experiment_id, "hparams": {}, "unmanaged": True}
        body = {"createTrialRequest": new, "externalTrialId": name}
        return await user.put("/api/v1/trials", json=body)

    experiment_id = new_id(await put("e"))
    refused(await put("f"), "quotas.experiments")
    made = await asyncio.gather(*(trial(f"t{n}") for n in range(6)))
    ids = [one.json()["trial"]["id"] for one in made if one.status_code == 200]
    assert len(ids) == 2
    # An existing experiment is found again, and its trials may still report.
    assert new_id(await put("e")) == experiment_id
    first = f"/api/v1/trials/{ids[0]}"
    assert (await user.post(f"{first}/start", json={"resume": True})).status_code == 200
    await say(user, ids[0], "COMPLETED")
    assert (await trial("another")).status_code == 200
    # An ended one that begins again takes a place.
    refused(await user.post(f"{first}/start", json={"resume": True}), "would have 3 trials")
    assert (await user.get(first)).json()["trial"]["state"] == "STATE_COMPLETED"


async def test_tasks(user: httpx.AsyncClient, world: World, allow: Allow) -> None:
    await allow(tasks=4)
    said = "4 are allowed (quotas.tasks)"
    await race([launch(user) for _ in range(16)], 4, said, "det task kill ID")
    (one, *_) = await world.rows(sa.select(tasks.c.id).where(tasks.c.kind == "COMMAND"))
    assert (await user.post(f"/api/v1/commands/{one.id}/kill")).status_code == 200
    assert (await launch(user)).status_code == 200


async def stored(world: World) -> int:
    ((found,),) = await world.rows(sa.select(sa.func.sum(model_definitions.c.size)))
    return int(found or 0)


async def test_model_definitions_count_for_their_submitter(
    user: httpx.AsyncClient, ada: httpx.AsyncClient, world: World, allow: Allow
) -> None:
    first = new_id(await submit(user, content=b"first"))
    one = await stored(world)
    ((real,),) = await world.rows(sa.select(sa.func.octet_length(model_definitions.c.archive)))
    assert one == real
    await allow(model_definition_bytes=one + 20)
    said = f"at most {one + 20} are allowed (quotas.model_definition_bytes)"
    refused(await submit(user, content=b"other"), "bytes of model definitions", said)
    refused(await launch_with(user, b"other"), said, "det experiment delete ID")
    pipeline = {
        "pipeline": {
            "name": "p",
            "steps": [
                {
                    "name": "a",
                    "code": "0",
                    "experiment": json.loads(submission()["config"]),
                }
            ],
        },
        "modelDefinitions": {"0": submission(content=b"other")["modelDefinition"]},
    }
    refused(await user.post("/api/v1/pipelines", json=pipeline), said)
    assert await stored(world) == one
    # The same directory takes no further space, another user has a separate quota, and everybody may use an
    # already stored directory.
    mine = [first, new_id(await submit(user, content=b"first"))]
    new_id(await submit(ada, content=b"other"))
    new_id(await submit(user, content=b"other"))
    refused(await submit(user, content=b"third"), said)
    for experiment_id in mine:
        async with changing(world.db) as change:
            await erase(change, experiment_id)
    new_id(await submit(user, content=b"third"))


async def launch_with(client: httpx.AsyncClient, content: bytes) -> httpx.Response:
    config = {"entrypoint": ["true"], "resources": {"slots": 0}}
    files = submission(content=content)["modelDefinition"]
    return await client.post("/api/v1/commands", json={"config": config, "files": files})


async def test_one_login_too_many_ends_the_least_used_session(
    service_app: FastAPI,
    ada: httpx.AsyncClient,
    user: httpx.AsyncClient,
    world: World,
    allow: Allow,
) -> None:
    tokens = [await log_in(service_app) for _ in range(2)]
    clients = [ada, *(client_of(service_app, token) for token in tokens)]
    async with world.db.tx() as conn:
        long_ago = sa.func.now() - 2 * SEEN
        await conn.execute(sa.update(user_sessions).values(seen_at=long_ago))
    # The oldest is in use.
    assert [(await ada.get("/api/v1/me")).status_code, await sessions(world)] == [200, 3]
    await allow(sessions=3)
    await asyncio.gather(*(log_in(service_app) for _ in range(2)))
    assert await sessions(world) == 3
    statuses = [(await one.get("/api/v1/me")).status_code for one in clients]
    assert statuses == [200, 401, 401]
    # Another user's sessions are their own.
    assert (await user.get("/api/v1/me")).status_code == 200


async def sessions(world: World) -> int:
    """The rows of the newest user."""
    of = user_sessions.c.user_id
    newest = sa.select(sa.func.max(of)).scalar_subquery()
    return len(await world.rows(sa.select(of).where(of == newest)))


async def test_logs_that_are_full_say_so_once_and_go_on_when_there_is_room(
    world: World,
    user: httpx.AsyncClient,
    agent: httpx.AsyncClient,
    allow: Allow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_room, "REMEMBER_S", -1.0)
    leg, other = await world.leg(), await world.leg()
    await send(agent, leg, line("x" * 1000 + "\n"), line("\n"))
    ((size, cut),) = await world.rows(sa.select(log_sizes.c.bytes, log_sizes.c.is_cut))
    assert 1200 < size < 1800 and not cut
    await allow(log_bytes=size)
    for _ in range(3):
        answer = await send(agent, other, line("lost\n"), line("lost too\n"))
        assert answer.json() == {"stored": 0}
    (notice,) = await read(user, other)
    assert notice["log"].startswith(f"The logs of user determined take {size} bytes, and at most ")
    for words in (
        f"at most {size} are allowed (quotas.log_bytes)",
        "det experiment delete ID",
        "an administrator, who may raise it",
    ):
        assert words in notice["log"]
    assert notice["source"] == "service"
    # The service counts the bytes that it stores of each.
    counted = {row.task_id: row.bytes for row in await world.rows(sa.select(log_sizes))}
    assert counted == {leg.task_id: size, other.task_id: 0}
    async with changing(world.db) as change:
        await erase(change, leg.experiment_id)
    assert await texts(user, other) == [notice["log"]]
    await send(agent, other, line("kept\n"))
    assert await texts(user, other) == [notice["log"], "kept\n"]
    # Full again, it adds the line again.
    ((size,),) = await world.rows(sa.select(log_sizes.c.bytes))
    await allow(log_bytes=size)
    for _ in range(2):
        await send(agent, other, line("lost\n"))
    assert len(await texts(user, other)) == 3


async def test_lines_of_several_tasks_in_one_request_are_counted_for_each(
    world: World, user: httpx.AsyncClient, agent: httpx.AsyncClient, allow: Allow
) -> None:
    mine, hers = await world.leg(), await legs_of(world, agent)
    logs = [{"taskId": leg.task_id, "log": "x\n"} for leg in (mine, hers, mine)]
    answer = await agent.post("/api/v1/task/logs", content=orjson.dumps({"logs": logs}))
    assert answer.status_code == 200, answer.text
    counted = {row.task_id: row for row in await world.rows(sa.select(log_sizes))}
    assert counted[mine.task_id].bytes == 2 * counted[hers.task_id].bytes
    assert counted[mine.task_id].owner_id != counted[hers.task_id].owner_id
    # Each user has a separate quota: the sums are read again before a quota counts as full.
    await allow(log_bytes=counted[mine.task_id].bytes)

    async def lines_of(leg: Leg) -> int:
        await agent.post("/api/v1/task/logs", content=orjson.dumps({"logs": logs[:2]}))
        of = sa.select(task_logs.c.id).where(task_logs.c.task_id == leg.task_id)
        return len(await world.rows(of.where(task_logs.c.source == "service")))

    async def said() -> bool:
        return await lines_of(mine) == 1

    await until_async("the log is full", said)


async def legs_of(world: World, agent: httpx.AsyncClient) -> Leg:
    made = await agent.post("/api/v1/users", json={"user": {"username": "eve"}, "password": "p"})
    return await world.leg(owner_id=made.json()["user"]["id"])
