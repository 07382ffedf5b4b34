"""Up, and ready."""

from __future__ import annotations

import threading

import httpx
import orjson
import psycopg
import sqlalchemy as sa
from fastapi import FastAPI

from determined_service.app import create_app
from determined_service.base.settings import Settings
from tests.integration.conftest import AGENT_TOKEN, client_of, serve
from tests.waiting import TIMEOUT_S


async def test_health_needs_no_token(anonymous: httpx.AsyncClient) -> None:
    assert (await anonymous.get("/health")).json() == {"status": "up"}


async def test_ready_when_migrated(anonymous: httpx.AsyncClient) -> None:
    answer = await anonymous.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


async def test_not_ready_without_prefect(settings: Settings, service_app: FastAPI) -> None:
    service_app.state.settings = settings.model_copy(
        update={"prefect_api_url": "http://127.0.0.1:9/api"}
    )
    async with client_of(service_app, None) as client:
        answer = await client.get("/ready")
        assert answer.status_code == 503
        assert "http://127.0.0.1:9/api does not answer" in answer.json()["problems"]["prefect"]
        assert (await client.get("/health")).status_code == 200


async def test_not_ready_when_the_database_is_of_another_version(
    anonymous: httpx.AsyncClient, service_app: FastAPI
) -> None:
    async with service_app.state.db.tx() as conn:
        await conn.execute(sa.text("UPDATE determined_alembic_version SET version_num = '0000'"))
    answer = await anonymous.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["problems"]["database"].startswith("the database is at revision 0000")


def test_a_stop_ends_followed_logs_with_a_word(settings: Settings) -> None:
    lines: list[str] = []
    arrived = threading.Event()

    def follow(client: httpx.Client) -> None:
        with client.stream("GET", "/api/v1/tasks/t/logs", params={"follow": "true"}) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                arrived.set()

    headers = {"Authorization": f"Bearer {AGENT_TOKEN}"}
    with serve(create_app(settings)) as url:
        with httpx.Client(
            base_url=url, headers=headers, trust_env=False, timeout=TIMEOUT_S
        ) as client:
            body = {"task_id": "t", "lines": [{"t": 0, "log": "a\n"}]}
            assert client.post("/internal/v1/logs", json=body).status_code == 200
        with psycopg.connect(settings.db_url, autocommit=True) as conn:
            conn.execute(
                "INSERT INTO tasks (id, kind, owner_id) SELECT 't', 'TRIAL', min(id) FROM users"
            )
            conn.execute(
                "INSERT INTO allocations (id, task_id, state, resource_pool, slots)"
                " VALUES ('t.1', 't', 'RUNNING', 'default', 1)"
            )
        client = httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=TIMEOUT_S)
        follower = threading.Thread(target=follow, args=(client,))
        follower.start()
        assert arrived.wait(TIMEOUT_S)
    follower.join()
    client.close()
    # A server that only waited for its followers would finally cut them off without this message.
    assert "the service is stopping" in orjson.loads(lines[-1])["error"]["message"]


async def test_lost_connections_to_the_database_are_a_503_and_then_forgotten(
    agent: httpx.AsyncClient, settings: Settings
) -> None:
    assert (await agent.get("/api/v1/experiments")).status_code == 200
    with psycopg.connect(settings.db_url, autocommit=True) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    seen = [(await agent.get("/api/v1/experiments")).status_code for _ in range(5)]
    assert set(seen) <= {200, 503}
    assert seen[-1] == 200
