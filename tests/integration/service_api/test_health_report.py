"""The service's report of the cluster's health."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database import migrate
from determined_service.base.settings import Settings
from determined_service.public import health, storage_check
from tests.integration.service_api.world import World
from tests.waiting import TIMEOUT_S

PATH = "/api/v1/cluster/health-report"


async def ask(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get(PATH)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def run(app: FastAPI, *statements: str) -> None:
    async with app.state.db.tx() as conn:
        for statement in statements:
            await conn.execute(sa.text(statement))


async def test_strangers_are_told_nothing(anonymous: httpx.AsyncClient) -> None:
    assert (await anonymous.get(PATH)).status_code == 401


async def test_nothing_ails_it(user: httpx.AsyncClient, settings: Settings) -> None:
    found = await ask(user)
    postgres = found["postgres"]
    assert postgres["revision"] == postgres["revisionWanted"] == migrate.head()
    assert abs(postgres["aheadS"]) < 1
    assert postgres["isLed"] is True
    assert found["checkpointStorage"]["tried"] is True
    assert found["checkpointStorage"]["problem"] is None
    assert found["checkpointStorage"]["disk"]["freeBytes"] > 0
    assert found["disk"]["totalBytes"] > 0
    assert found["prefect"] is None
    assert found["stuck"] == {
        "searches": [],
        "notStarted": [],
        "unplaced": [],
        "notEnded": [],
        "notDeleted": [],
    }
    # The probe leaves nothing behind.
    assert list((settings.data_dir / "checkpoints").iterdir()) == []


async def test_a_storage_that_does_not_take_files(
    user: httpx.AsyncClient, service_app: FastAPI, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    section = {"type": "shared_fs", "host_path": str(tmp_path / "file")}
    service_app.state.settings = settings.model_copy(update={"default_checkpoint_storage": section})
    storage = (await ask(user))["checkpointStorage"]
    assert storage["tried"] is True
    assert str(tmp_path / "file") in storage["problem"]


async def test_a_storage_of_a_cloud_is_tried(
    user: httpx.AsyncClient,
    service_app: FastAPI,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobody = {"endpoint_url": "http://127.0.0.1:9", "access_key": "a", "secret_key": "do-not-tell"}
    for given, seconds, problem in (
        ({"bucket": "b", **nobody}, 1.0, "it did not answer within 1 s"),
        (
            {"secret_key": "do-not-tell"},
            TIMEOUT_S,
            "checkpoint_storage.bucket must be the name of a bucket",
        ),
    ):
        monkeypatch.setattr(storage_check, "TIMEOUT_S", seconds)
        section = {"type": "s3", **given}
        changed = settings.model_copy(update={"default_checkpoint_storage": section})
        service_app.state.settings = changed
        answer = await user.get(PATH)
        found = answer.json()["checkpointStorage"]
        assert (found["tried"], found["problem"]) == (True, problem)
        assert "do-not-tell" not in answer.text
    # A second request within the interval does not contact the cloud.
    monkeypatch.setattr(storage_check, "_try", None)
    assert (await ask(user))["checkpointStorage"]["problem"] == problem


async def test_a_pool_without_an_agent(
    user: httpx.AsyncClient, service_app: FastAPI, world: World
) -> None:
    assert (await ask(user))["pools"] == [{"name": "default", "agents": 0, "waiting": 0}]
    await run(
        service_app,
        "INSERT INTO agents (id, resource_pool, session) VALUES ('a', 'default', gen_random_uuid())",
        "INSERT INTO agents (id, resource_pool, session, away)"
        " VALUES ('b', 'default', gen_random_uuid(), 'ended')",
    )
    assert (await ask(user))["pools"][0]["agents"] == 1


async def test_a_prefect_that_is_away(
    service_app: FastAPI, settings: Settings, user: httpx.AsyncClient
) -> None:
    service_app.state.settings = settings.model_copy(
        update={"prefect_api_url": "http://127.0.0.1:9/api"}
    )
    prefect = (await ask(user))["prefect"]
    assert prefect["version"] is None
    assert prefect["problem"].startswith("it does not answer: ")


async def test_a_prefect_that_is_slow(
    service_app: FastAPI,
    settings: Settings,
    user: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "PREFECT_TIMEOUT_S", 0.1)
    # It takes connections, and answers none.
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/api"
        service_app.state.settings = settings.model_copy(update={"prefect_api_url": url})
        assert (await ask(user))["prefect"]["problem"] == "it does not answer within 0.1 s"
        answer = (await user.get("/ready")).json()
    assert answer["problems"]["prefect"] == f"Prefect at {url} does not answer within 0.1 s"


async def test_stuck_work(service_app: FastAPI, user: httpx.AsyncClient, world: World) -> None:
    experiment = await world.experiment()
    trial, _ = await world.trial(experiment)
    await run(
        service_app,
        "INSERT INTO agents (id, resource_pool, session, last_heartbeat, version)"
        " VALUES ('a1', 'default', gen_random_uuid(), now() - interval '2 minutes', '9')",
        f"UPDATE experiments SET state = 'ACTIVE' WHERE id = {experiment}",
        "INSERT INTO kept_runs (experiment_id, seen_at) VALUES"
        f" ({experiment}, now() - interval '5 minutes')",
        "INSERT INTO tasks (id, kind, owner_id) SELECT 't', 'TRIAL', min(id) FROM users",
        "INSERT INTO allocations (id, task_id, trial_id, state, resource_pool, slots, agent_id,"
        f" assigned_at) VALUES ('late', 't', {trial}, 'ASSIGNED', 'default', 1, 'a1',"
        " now() - interval '5 minutes')",
        "INSERT INTO allocations (id, task_id, trial_id, state, resource_pool, slots, agent_id,"
        f" kill_requested_at) VALUES ('tough', 't', {trial}, 'RUNNING', 'default', 1, 'a1',"
        " now() - interval '5 minutes')",
        "INSERT INTO experiments (state, reason, name, config, owner_id) SELECT 'DELETE_FAILED',"
        " 'read-only', 'gone', '{}', min(id) FROM users",
        "INSERT INTO prefect_outbox (entity, kind, payload, created_at, attempts, last_error)"
        " VALUES ('trial:0', 'state', '{}', now() - interval '5 minutes', 4, 'refused')",
    )
    found = await ask(user)
    stuck = found["stuck"]
    (search,) = stuck["searches"]
    assert search["experimentId"] == experiment
    assert 300 <= search["forS"] < 400
    assert [(item["allocationId"], item["agentId"]) for item in stuck["notStarted"]] == [
        ("late", "a1")
    ]
    assert [(item["allocationId"], item["trialId"]) for item in stuck["notEnded"]] == [
        ("tough", trial)
    ]
    assert [item["reason"] for item in stuck["notDeleted"]] == ["read-only"]
    assert found["outbox"]["lastError"] == "refused"
    assert found["outbox"]["oldestS"] > 290
    (agent,) = found["agents"]
    assert agent["allocations"] == 2
    assert agent["state"] == "STATE_SILENT"
    assert 120 <= agent["silentS"] < 220
