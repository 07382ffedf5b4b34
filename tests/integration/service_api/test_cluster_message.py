"""The message of the cluster to all its users."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from determined_registry.database.tables import cluster
from determined_service.base import topics
from determined_service.lifecycle import cluster_message
from determined_service.lifecycle.cluster_message import ClusterMessage
from determined_service.state.change import changing
from tests.integration.conftest import client_of
from tests.integration.service_api.world import World
from tests.waiting import until_async

MASTER = "/api/v1/master"
MESSAGE = f"{MASTER}/cluster_message"
DAY = datetime.timedelta(days=1)


def after(length: datetime.timedelta) -> str:
    return (datetime.datetime.now(datetime.UTC) + length).isoformat()


async def seen(client: httpx.AsyncClient) -> Any:
    """What everybody is told: the text, or None."""
    found = (await client.get(MASTER)).raise_for_status().json()
    return found.get("clusterMessage", {}).get("message")


@pytest.fixture
async def admin(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(world.app, None) as client:
        login = {"username": "admin", "password": "", "isHashed": True}
        answer = (await client.post("/api/v1/auth/login", json=login)).raise_for_status()
        client.headers["Authorization"] = f"Bearer {answer.json()['token']}"
        yield client


async def test_from_its_beginning_to_its_end(
    admin: httpx.AsyncClient, user: httpx.AsyncClient, anonymous: httpx.AsyncClient, world: World
) -> None:
    assert "clusterMessage" not in (await anonymous.get(MASTER)).json()
    assert (await user.get(MESSAGE)).json() == {"clusterMessage": None}
    assert (await anonymous.get(MESSAGE)).status_code == 401
    body = {"message": " going down ", "endTime": after(DAY)}
    assert (await admin.put(MESSAGE, json=body)).json() == {}
    assert await seen(anonymous) == "going down"
    found = (await user.get(MESSAGE)).json()["clusterMessage"]
    assert set(found) == {"message", "startTime", "endTime", "createdTime"}
    # One that begins later replaces it, and only administrators see it.
    later = {"message": "later", "startTime": after(DAY), "duration": "2w"}
    assert (await admin.put(MESSAGE, json=later)).json() == {}
    assert await seen(user) is None
    assert (await user.get(MESSAGE)).json() == {"clusterMessage": None}
    found = (await admin.get(MESSAGE)).json()["clusterMessage"]
    begin, end = (datetime.datetime.fromisoformat(found[f"{one}Time"]) for one in ("start", "end"))
    assert (found["message"], end - begin) == ("later", 14 * DAY)
    for _ in range(2):
        assert (await admin.delete(MESSAGE)).json() == {}
    assert (await admin.get(MESSAGE)).json() == {"clusterMessage": None}
    assert [row.message for row in await world.rows(sa.select(cluster.c.message))] == [None]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"message": " "}, "message: it is blank"),
        ({"message": "x" * 501}, "message: 501 characters found, at most 500 are allowed"),
        ({"message": "a\0b"}, "message"),
        ({"message": "x", "startTime": "soon"}, "startTime must be an ISO 8601 time"),
        ({"message": "x", "endTime": "2020-01-01T00:00:00Z"}, "is not after startTime"),
        ({"message": "x", "duration": "1y"}, "expected a duration such as 1h30m, 5d or 2w"),
        ({"message": "x", "duration": "9" * 400 + "h"}, "expected a duration"),
        ({"message": "x", "duration": "99999w"}, "duration: expected a time from"),
        ({"message": "x", "duration": "0s"}, "is not after startTime: nobody would see it"),
        (
            {"message": "x", "duration": "1h", "endTime": "2990-01-01T00:00:00Z"},
            "duration: give it or endTime, not both",
        ),
        (
            {"message": "x", "startTime": "2020-01-01T00:00:00Z", "duration": "1d"},
            "is not after now",
        ),
    ],
)
async def test_what_nobody_can_mean_is_refused(
    admin: httpx.AsyncClient, body: dict[str, Any], said: str
) -> None:
    answer = await admin.put(MESSAGE, json=body)
    assert (answer.status_code, said in answer.json()["message"]) == (400, True), answer.text
    assert await seen(admin) is None


async def test_administrators_set_it(user: httpx.AsyncClient, world: World) -> None:
    for answer in (await user.put(MESSAGE, json={"message": "x"}), await user.delete(MESSAGE)):
        assert answer.status_code == 403
        assert "only an administrator may set the message of the cluster" in answer.text
    assert await seen(user) is None


async def test_other_processes_take_it_over(user: httpx.AsyncClient, world: World) -> None:
    waiting = world.app.state.hub._waiters
    await until_async("the process follows", lambda: topics.CLUSTER_MESSAGE in waiting)
    now = datetime.datetime.now(datetime.UTC)
    async with changing(world.db) as change:
        await cluster_message.put(change, ClusterMessage("of another", now, None, now))

    async def told() -> bool:
        return bool(await seen(user) == "of another")

    await until_async("the process knows it", told)
