"""Doors into tasks by the REST API: who gets the secret, and the messages to the agent and the supervisor."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import sqlalchemy as sa

from determined.common.wire import doors, paths, shells
from determined.common.wire.shells import Frame, Frames
from tests.integration.control.test_launched import another_user
from tests.integration.control.world import Trial, World, ok


def wanted(world: World, task_id: str, **given: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(world.user.post(f"/api/v1/tasks/{task_id}/doors", json=given))


async def rung(world: World) -> list[str]:
    while not (found := (await world.work(5))["doors"]):
        pass
    return list(found)


async def order(world: World, leg: Trial, node: int = 0) -> dict[str, Any]:
    path = paths.DOOR_ORDER.format(allocation_id=leg.allocation_id, node=node)
    found: dict[str, Any] = ok(await world.agent.get(path))
    return found


async def report(world: World, leg: Trial, **state: Any) -> httpx.Response:
    path = paths.DOOR.format(allocation_id=leg.allocation_id)
    return await world.agent.post(path, json={"node": 0, **state})


async def test_a_door_is_asked_for_opened_and_closed(world: World) -> None:
    await world.register(slots=1)
    await world.started()
    leg = await world.launched()
    task_id = leg.spec["task_id"]
    early = await wanted(world, task_id)
    assert early.status_code == 409 and "is being prepared by agent a1" in early.text
    ok(await leg.started())
    assert not (await order(world, leg))["wanted"]

    asked = wanted(world, task_id)
    assert await rung(world) == [leg.allocation_id]
    # Told at once, then only with each heartbeat.
    assert (await world.work())["doors"] == [leg.allocation_id]
    hash_ = (await order(world, leg))["secret_hash"]
    state = {"secret_hash": hash_, "open": True, "address": "127.0.0.1", "port": 2700}
    assert (await report(world, leg, **{**state, "secret_hash": "other"})).status_code == 409
    ok(await report(world, leg, **state))
    found = ok(await asked)
    assert shells.hash_of(found["secret"]) == hash_ and hash_ not in str(found)
    assert (found["port"], found["nodes"], found["agentId"]) == (doors.port_name(0), 1, "a1")
    row = await world.row("SELECT port, ready, unauthenticated, shared, tcp FROM allocation_ports")
    assert row == {
        "port": 2700,
        "ready": True,
        "unauthenticated": False,
        "shared": False,
        "tcp": True,
    }
    # The door is open: no request waits, and the supervisor is not notified.
    assert ok(await wanted(world, task_id)) == found and (await world.work())["doors"] == []
    # Others, the task itself and a stranger get no secret.
    eve = await another_user(world, "eve")
    for somebody in (eve, leg.client):
        refused = await somebody.post(f"/api/v1/tasks/{task_id}/doors", json={})
        assert refused.status_code == 403 and "secret" not in refused.text
    assert found["secret"] not in str(ok(await world.user.get(f"/api/v1/tasks/{task_id}")))

    # A request during the closing opens the door again.
    again = wanted(world, task_id, again=True)
    assert await rung(world) == [leg.allocation_id]
    assert (await report(world, leg, **{**state, "open": False})).status_code == 409
    ok(await report(world, leg, **{**state, "port": 2701}))
    assert ok(await again)["secret"] == found["secret"]
    assert (await world.row("SELECT port FROM allocation_ports"))["port"] == 2701
    ok(await report(world, leg, **{**state, "open": False}))
    assert await world.rows("SELECT * FROM allocation_ports") == []
    assert not (await order(world, leg))["wanted"]

    broken = wanted(world, task_id)
    await rung(world)
    hash_ = (await order(world, leg))["secret_hash"]
    ok(await report(world, leg, secret_hash=hash_, open=False, problem="no port is free"))
    answer = await broken
    assert (
        answer.status_code == 409
        and "agent a1 cannot open the task: no port is free" in answer.text
    )
    missing = await wanted(world, task_id, node=3)
    assert missing.status_code == 404 and "it runs on one machine, node 0" in missing.text
    assert (await wanted(world, "none")).status_code == 404

    # The end of the allocation closes it.
    waits = wanted(world, task_id)
    await rung(world)
    ok(await leg.exited(exit_code=1))
    assert (await waits).status_code == 409
    assert await world.rows("SELECT * FROM allocation_doors") == []


async def test_an_agent_that_is_away(world: World) -> None:
    await world.register(slots=1)
    await world.started()
    leg = await world.launched()
    ok(await leg.started())
    async with world.app.state.db.tx() as conn:
        await conn.execute(sa.text("UPDATE agents SET last_heartbeat = now() - interval '1 day'"))
    refused = await wanted(world, leg.spec["task_id"])
    assert refused.status_code == 409 and "has been silent for" in refused.text


async def test_stacks_of_a_task(world: World) -> None:
    await world.register(slots=1)
    await world.started()
    leg = await world.launched()
    task_id = leg.spec["task_id"]
    ok(await leg.started())
    said: list[dict[str, Any]] = []
    answers = [
        [(Frame.OUTPUT, b"main.py:7\n"), (Frame.ERRORS, b"\xff\n"), (Frame.EXIT, b'{"code": 0}')]
    ]
    answers += [[(Frame.REFUSED, b"the secret is another one")], [(Frame.OUTPUT, b"half")]]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = Frames()
        while not (found := frames.feed(await reader.read(1 << 16))):
            pass
        said.append(json.loads(found[0][1]))
        for kind, content in answers.pop(0):
            writer.write(shells.frame(kind, content))
        writer.close()

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(f"/api/v1/tasks/{task_id}/stacks", json={})

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        asked = asyncio.create_task(ask(world.user))
        await rung(world)
        hash_ = (await order(world, leg))["secret_hash"]
        state = {"secret_hash": hash_, "open": True, "address": "127.0.0.1", "port": port}
        ok(await report(world, leg, **state))
        assert ok(await asked) == {
            "stacks": "main.py:7\n\\xff\n",
            "problem": None,
            "node": 0,
            "nodes": 1,
            "agentId": "a1",
        }
        assert shells.hash_of(said[0]["secret"]) == hash_
        assert said[0]["argv"][-1] == doors.STACKS
        assert ok(await ask(world.user))["problem"] == "the secret is another one"
        half = ok(await ask(world.user))
        assert (half["stacks"], half["problem"]) == ("half", "the task has ended, or was stopped")
    eve = await another_user(world, "eve")
    for somebody in (eve, leg.client):
        assert (await ask(somebody)).status_code == 403
    # Nobody answers there any more: the door is asked for once more, and then it is said.
    asked = asyncio.create_task(ask(world.user))
    await rung(world)
    ok(await report(world, leg, **state))
    refused = await asked
    assert refused.status_code == 409 and "the service does not reach task" in refused.text
