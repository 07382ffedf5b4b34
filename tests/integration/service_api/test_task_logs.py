"""Task logs: stored once and unchanged, filtered, followed."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from typing import Any

import httpx
import orjson
import pytest
import sqlalchemy as sa

from determined.common.api import Session
from determined_registry.database.tables import trials
from tests.integration.service_api.world import Leg, World
from tests.waiting import TIMEOUT_S


def line(log: str, t: float = 0.0, **more: Any) -> dict[str, Any]:
    return {
        "t": t,
        "stdtype": "stdout",
        "level": None,
        "rank": 0,
        "source": "task",
        "log": log,
        **more,
    }


async def send(
    agent: httpx.AsyncClient, leg: Leg, *lines: dict[str, Any], **more: Any
) -> httpx.Response:
    body = {
        "stream": str(uuid.uuid4()),
        "seq": 0,
        "task_id": leg.task_id,
        "allocation_id": leg.allocation_id,
        "agent_id": "agent-1",
        "lines": list(lines),
        **more,
    }
    answer = await agent.post("/internal/v1/logs", content=orjson.dumps(body))
    assert answer.status_code == 200, answer.text
    return answer


async def read(client: httpx.AsyncClient, leg: Leg, **params: Any) -> list[dict[str, Any]]:
    answer = await client.get(f"/api/v1/tasks/{leg.task_id}/logs", params=params)
    assert answer.status_code == 200, answer.text
    return [orjson.loads(one)["result"] for one in answer.text.splitlines()]


async def texts(client: httpx.AsyncClient, leg: Leg, **params: Any) -> list[str]:
    return [one["log"] for one in await read(client, leg, **params)]


async def test_nul_and_a_megabyte_and_odd_bytes_survive(
    world: World, agent: httpx.AsyncClient
) -> None:
    leg = await world.leg()
    sent = [
        "a\0b\n",
        "x" * 2**20 + "\n",
        "tab\tback\\slash \\x00 \r\n",
        "ünï\u2028code\n",
        "\n",
        "end",
    ]
    await send(agent, leg, *map(line, sent))
    assert await texts(agent, leg) == sent


async def test_windows_of_a_log(world: World, agent: httpx.AsyncClient) -> None:
    leg = await world.leg()
    await send(agent, leg, *(line(f"{number}\n") for number in range(9)), line("é" * 1000 + "\n"))
    every = await read(agent, leg)
    ids = [int(one["id"]) for one in every]
    assert await texts(agent, leg, afterId=ids[6], limit=2) == ["7\n", "8\n"]
    assert await texts(agent, leg, beforeId=ids[3], limit=2, orderBy="ORDER_BY_DESC") == [
        "2\n",
        "1\n",
    ]
    assert await texts(agent, leg, beforeId=ids[3], afterId=ids[1]) == ["2\n"]
    cut = await read(agent, leg, lineBytes=5, afterId=ids[7])
    assert [(one["log"], one.get("bytes")) for one in cut] == [("8\n", None), ("éé\\xc3", 2001)]
    assert all("bytes" not in one for one in every)


async def test_the_line_to_show(world: World, agent: httpx.AsyncClient) -> None:
    leg = await world.leg()
    await send(agent, leg, line("INFO: [9] x: hello\n", 1.25, level="INFO"), line("end", 2, rank=3))
    first, second = await read(agent, leg)
    assert first["message"] == "[1970-01-01T00:00:01.250Z] [rank=0] || INFO: [9] x: hello\n"
    assert second["message"] == "[1970-01-01T00:00:02.000Z] [rank=3] || end\n"
    assert (first["level"], second["level"]) == ("LOG_LEVEL_INFO", "LOG_LEVEL_INFO")
    assert first["taskId"] == leg.task_id
    (of_trial, _) = [
        orjson.loads(one)["result"]
        for one in (await agent.get(f"/api/v1/trials/{leg.trial_id}/logs")).text.splitlines()
    ]
    assert of_trial["trialId"] == leg.trial_id
    assert of_trial["timestamp"] == "1970-01-01T00:00:01.250000Z"


async def test_same_lines_sent_at_once_are_stored_once(
    world: World, agent: httpx.AsyncClient
) -> None:
    leg = await world.leg()
    stream = str(uuid.uuid4())
    answers = await asyncio.gather(
        *(send(agent, leg, line("a\n"), line("b\n"), stream=stream) for _ in range(5))
    )
    assert sorted(answer.json()["stored"] for answer in answers) == [0, 0, 0, 0, 2]
    await send(agent, leg, line("c\n"), stream=stream, seq=1)
    assert await texts(agent, leg) == ["a\n", "b\n", "c\n"]


FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "abcde"),
    ({"limit": 2}, "ab"),
    ({"limit": 2, "orderBy": "ORDER_BY_DESC"}, "ed"),
    ({"stdtypes": "stderr"}, "b"),
    ({"rankIds": [1, 2]}, "cd"),
    ({"rankIds": -1}, "e"),
    ({"rankIds": [-1, 2]}, "de"),
    ({"levels": ["LOG_LEVEL_ERROR", "LOG_LEVEL_CRITICAL"]}, "e"),
    ({"levels": "LOG_LEVEL_INFO"}, "abcd"),
    ({"sources": "agent"}, "d"),
    ({"timestampAfter": "1970-01-01T00:00:02Z"}, "de"),
    ({"timestampBefore": "1970-01-01T00:00:02Z"}, "ab"),
    ({"agentIds": "agent-1"}, "abcde"),
    ({"agentIds": "agent-2"}, ""),
    ({"containerIds": "c"}, ""),
    ({"searchText": "E"}, "e"),
    ({"searchText": "^[ab]", "enableRegex": "true"}, "ab"),
]


async def test_filters(world: World, agent: httpx.AsyncClient) -> None:
    leg = await world.leg()
    await send(
        agent,
        leg,
        line("a", 0),
        line("b", 1, stdtype="stderr"),
        line("c", 2, rank=1),
        line("d", 3, rank=2, source="agent"),
        line("e", 4, level="ERROR", rank=None),
    )
    for params, found in FILTERS:
        assert "".join(await texts(agent, leg, **params)) == found, params


async def test_text_with_any_characters_is_found(world: World, agent: httpx.AsyncClient) -> None:
    leg = await world.leg()
    sent = ["größe 100%\n", "back\\slash\n", "a\0b\n"]
    await send(agent, leg, *map(line, sent))
    for text, found in zip(("ße 100%", "k\\s", "a\0b"), sent, strict=True):
        assert await texts(agent, leg, searchText=text) == [found]


async def test_filters_by_allocation(world: World, agent: httpx.AsyncClient) -> None:
    leg = await world.leg()
    await send(agent, leg, line("first"))
    await send(agent, leg, line("second"), allocation_id=f"{leg.task_id}.2")
    assert await texts(agent, leg, allocationIds=f"{leg.task_id}.2") == ["second"]
    fields = (await agent.get(f"/api/v1/tasks/{leg.task_id}/logs/fields")).json()["result"]
    assert fields["allocationIds"] == [leg.allocation_id, f"{leg.task_id}.2"]
    assert (fields["agentIds"], fields["rankIds"]) == (["agent-1"], [0])


async def test_more_lines_than_a_chunk(world: World, agent: httpx.AsyncClient) -> None:
    leg = await world.leg()
    sent = [f"{number}\n" for number in range(2500)]
    await send(agent, leg, *map(line, sent))
    assert await texts(agent, leg) == sent
    assert await texts(agent, leg, limit=1500, orderBy="ORDER_BY_DESC") == sent[:-1501:-1]


async def test_unknown_task_and_trial(user: httpx.AsyncClient) -> None:
    for path in ("tasks/7.nothing", "tasks/nonsense", "trials/77"):
        assert (await user.get(f"/api/v1/{path}/logs")).status_code == 404


async def test_a_bad_time_and_a_bad_pattern_are_explained(
    world: World, agent: httpx.AsyncClient
) -> None:
    leg = await world.leg()
    path = f"/api/v1/tasks/{leg.task_id}/logs"
    bad = await agent.get(path, params={"timestampAfter": "yesterday"})
    assert (bad.status_code, "ISO 8601" in bad.text) == (400, True)
    bad = await agent.get(path, params={"searchText": "(", "enableRegex": "true"})
    assert (bad.status_code, "regular expression" in bad.text) == (400, True)


async def test_a_training_process_writes_its_own_logs_only(world: World) -> None:
    mine, other = await world.leg(), await world.leg()
    log = {"taskId": mine.task_id, "log": "hi\n", "level": "LOG_LEVEL_ERROR", "stdtype": "stderr"}
    assert (await mine.client.post("/api/v1/task/logs", json={"logs": [log]})).status_code == 200
    assert [one["level"] for one in await read(mine.client, mine)] == ["LOG_LEVEL_ERROR"]
    log["taskId"] = other.task_id
    assert (await mine.client.post("/api/v1/task/logs", json={"logs": [log]})).status_code == 403


async def test_following_gives_lines_as_they_come_and_ends_with_the_task(
    world: World, agent: httpx.AsyncClient
) -> None:
    from determined_service.views.logs import LogFilter, follow_logs

    leg = await world.leg()
    await send(agent, leg, line("before"))
    seen: list[str] = []
    arrived = asyncio.Event()

    async def follow() -> None:
        async for rows in follow_logs(world.db, world.app.state.hub, leg.task_id, LogFilter()):
            seen.extend(row.log.decode() for row in rows)
            arrived.set()

    following = asyncio.create_task(follow())
    for count, text in ((1, None), (2, "during")):
        if text:
            await send(agent, leg, line(text))
        async with asyncio.timeout(TIMEOUT_S):
            while len(seen) < count:
                arrived.clear()
                await arrived.wait()
    assert not following.done()
    await send(agent, leg, line("last"))
    await world.end(leg)
    async with world.db.tx() as conn:
        await conn.execute(sa.update(trials).values(state="COMPLETED"))
        await conn.execute(sa.text(f"SELECT pg_notify('determined', 'trial:{leg.trial_id}')"))
    await asyncio.wait_for(following, TIMEOUT_S)
    assert seen == ["before", "during", "last"]


async def test_following_an_ended_task_waits_for_nothing(
    world: World, agent: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from determined_service.views import logs

    async def wait(*_: Any) -> bool:
        raise AssertionError("it waits for more lines")

    leg = await world.leg()
    await send(agent, leg, line("all"))
    await world.end(leg)
    async with world.db.tx() as conn:
        await conn.execute(sa.update(trials).values(state="COMPLETED", end_time=sa.func.now()))
    monkeypatch.setattr(logs, "wait_at_most", wait)
    assert await texts(agent, leg, follow="true") == ["all"]


def test_streaming_over_a_socket(service_url: str) -> None:
    """The blocking client reads line by line from a real server."""
    with Session(service_url, "agent-token-of-the-tests") as session:
        now = datetime.datetime.now(datetime.UTC).timestamp()
        body = {
            "stream": str(uuid.uuid4()),
            "seq": 0,
            "task_id": "some-task",
            "lines": [line(f"{number}\n", now) for number in range(1200)],
        }
        assert session.post("/internal/v1/logs", json=body) == {"stored": 1200}
        found = [one["log"] for one in session.stream("/api/v1/tasks/some-task/logs")]
        assert found == [f"{number}\n" for number in range(1200)]
