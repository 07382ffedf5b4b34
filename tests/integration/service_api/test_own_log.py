"""The service's own log, for administrators: its content, its start, following it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from determined_service.base import own_log, topics
from determined_service.base.own_log import OwnLog
from tests.integration.conftest import client_of
from tests.integration.service_api.world import World
from tests.waiting import until_async

LOGS = "/api/v1/master/logs"
logger = logging.getLogger("determined_service.test")


def entries(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line)["result"]["logEntry"] for line in answer.text.splitlines()]


@pytest.fixture
async def admin(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(world.app, None) as client:
        login = {"username": "admin", "password": "", "isHashed": True}
        answer = (await client.post("/api/v1/auth/login", json=login)).raise_for_status()
        client.headers["Authorization"] = f"Bearer {answer.json()['token']}"
        yield client


async def test_an_administrator_reads_it(
    world: World, admin: httpx.AsyncClient, user: httpx.AsyncClient
) -> None:
    for name in ("one", "two", "three"):
        logger.warning("said %s", name)
    try:
        raise ValueError("of a test")
    except ValueError:
        logger.exception("failed")
    logger.warning("postgresql://me:secret-word@db/data does not answer")
    found = entries(await admin.get(LOGS))
    ours = [one for one in found if one["message"].startswith("determined_service.test: ")]
    assert [one["message"].partition(": ")[2] for one in ours][:3] == [
        "said one",
        "said two",
        "said three",
    ]
    assert [one["level"] for one in ours[2:4]] == ["LOG_LEVEL_WARNING", "LOG_LEVEL_ERROR"]
    assert "ValueError: of a test" in ours[3]["message"]
    assert "secret-word" not in ours[4]["message"]
    numbers = [one["id"] for one in found]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert entries(await admin.get(LOGS, params={"offset": numbers[-1]})) == found[-1:]
    assert entries(await admin.get(LOGS, params={"offset": -2})) == found[-2:]
    assert entries(await admin.get(LOGS, params={"offset": -2, "limit": 1})) == found[-2:-1]
    assert entries(await admin.get(LOGS, params={"offset": -(10**9)})) == found
    assert entries(await admin.get(LOGS, params={"offset": 10**9})) == []
    refused = await user.get(LOGS)
    assert refused.status_code == 403
    assert "only an administrator may read the service's log" in refused.text


async def test_it_is_followed(world: World, admin: httpx.AsyncClient) -> None:
    logger.warning("before")
    asked = {"follow": True, "offset": -1, "limit": 3}
    following = asyncio.create_task(admin.get(LOGS, params=asked))
    waiting = world.app.state.hub._waiters
    await until_async("somebody follows", lambda: topics.SERVICE_LOG in waiting)
    logger.warning("since")
    await asyncio.to_thread(logger.warning, "and then")
    found = [one["message"] for one in entries(await following)]
    assert found == [f"determined_service.test: {word}" for word in ("before", "since", "and then")]


def test_no_more_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_log, "KEPT_CHARS", 1000)
    log = OwnLog()

    def say(text: str) -> None:
        log.handle(logging.LogRecord("a", logging.INFO, "", 0, "%s", (text,), None))

    for number in range(100):
        say(f"{number:07}")
    assert [line.number for line in log.lines(0, 1000)] == list(range(100))
    for number in range(100, 300):
        say(f"{number:07}")
    assert [line.number for line in log.lines(50, 2)] == [200, 201]
    assert log.lines(299, 5)[0].message == "a: 0000299"
    say("x" * 100_000)
    assert log.lines(0, 5) == []
