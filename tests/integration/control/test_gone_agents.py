"""Agents that end, die, or are taken out of the list."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import uvicorn

from determined_service.__main__ import GracefulServer
from determined_service.loops.reconciler import Reconciler
from determined_service.scheduling.placement import schedule_once
from tests.integration.control.test_search_path import SINGLE
from tests.integration.control.world import World, ok
from tests.waiting import until_async

AGENT = "/api/v1/agents/a1"
SILENT = "UPDATE agents SET last_heartbeat = now() - make_interval(secs => :s) RETURNING id"


async def sign_off(world: World, session: str | None = None) -> None:
    body = {"session": session or world.session}
    ok(await world.agent.post("/internal/v1/agents/a1/sign-off", json=body))


async def state(world: World) -> str:
    return str(ok(await world.user.get(AGENT))["agent"]["state"])


async def assigned(world: World) -> list[str]:
    """The agents to which something is assigned, once the scheduler has decided."""
    await schedule_once(world.app.state.db, world.app.state.snapshots)
    rows = await world.rows("SELECT agent_id FROM allocations WHERE state = 'ASSIGNED'")
    return [row["agent_id"] for row in rows]


async def reconcile(world: World) -> None:
    """A pass of a reconciler, as if the service had been up for long."""
    reconciler = Reconciler(world.app.state.db, None, 30.0)
    reconciler._began -= 100
    await reconciler.run_pass()


async def test_an_agent_that_signs_off_gets_no_work_until_it_registers(world: World) -> None:
    await world.register(slots=1)
    assert await state(world) == "STATE_ALIVE"
    # The process that had its name before it has nothing to say.
    await sign_off(world, str(uuid.uuid4()))
    assert await state(world) == "STATE_ALIVE"
    await sign_off(world)
    assert await state(world) == "STATE_ENDED"
    (pool,) = ok(await world.user.get("/api/v1/resource-pools"))["resourcePools"]
    assert pool["numAgents"] == 0
    body = {"session": world.session, "running": [], "prefect_poll_seq": 0, "timeout_s": 0}
    await world.started(SINGLE)
    assert await assigned(world) == []
    world.app.state.heartbeats._written.clear()
    assert (await world.agent.post("/internal/v1/agents/a1/work", json=body)).status_code == 409
    await world.register(slots=1)
    assert await state(world) == "STATE_ALIVE"
    await world.launched()


async def test_legs_that_an_ended_agent_did_not_begin_go_elsewhere(world: World) -> None:
    await world.register(slots=1)
    await world.started(SINGLE)
    trial = await world.launched()  # and it ends before it has started it
    await sign_off(world)
    await reconcile(world)
    leg = await world.row("SELECT state, reason FROM legs")
    assert (leg["state"], leg["reason"]) == ("LOST", "agent a1 ended before it started it")
    assert (await world.trial(trial.id))["restarts"] == 0
    await world.register(slots=1, agent_id="a2")
    assert (await world.launched("a2")).spec["run_id"] == 2


async def test_legs_of_an_ended_agent_report_their_own_end(world: World) -> None:
    await world.register(slots=1)
    await world.started(SINGLE)
    trial = await world.launched()
    ok(await trial.started())
    await sign_off(world)
    await reconcile(world)
    ok(await trial.exited(kind="infrastructure", exit_code=None, reason="its agent was stopped"))
    leg = await world.row("SELECT state, reason FROM legs")
    assert (leg["state"], leg["reason"]) == ("LOST", "its agent was stopped")


@pytest.fixture
async def url(world: World) -> AsyncIterator[str]:
    """The service, over a socket."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        config = uvicorn.Config(world.app, log_level="warning", lifespan="off")
        server = GracefulServer(world.app, config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


async def test_an_agent_that_is_killed_gets_no_work_until_it_speaks(world: World, url: str) -> None:
    await world.register(slots=1)
    body: dict[str, Any] = {"session": world.session, "prefect_poll_seq": 0, "timeout_s": 10}
    async with httpx.AsyncClient(base_url=url, headers=world.agent.headers) as client:
        poll = asyncio.create_task(client.post("/internal/v1/agents/a1/work", json=body))
        await until_async("the poll to wait", lambda: _beaten(world))
        poll.cancel()  # its connection is closed, as the kernel closes that of a killed process

    async def has_hung_up() -> bool:
        return (await world.row("SELECT away FROM agents"))["away"] == "hung_up"

    await until_async("the hang-up to be seen", has_hung_up)
    assert await state(world) == "STATE_SILENT"
    await world.started(SINGLE)
    assert await assigned(world) == []
    # Only the connection was lost: the agent sends requests again, and nothing else is needed.
    assert await world.launched()
    assert await state(world) == "STATE_ALIVE"


async def _beaten(world: World) -> bool:
    return "a1" in world.app.state.heartbeats._written


async def test_an_agent_that_is_gone_is_removed(world: World) -> None:
    await world.register(slots=1)
    await world.started(SINGLE)
    trial = await world.launched()
    ok(await trial.started())
    assert (await world.user.delete(AGENT)).status_code == 403
    refused = await world.agent.delete(AGENT)
    assert refused.status_code == 409
    assert "agent 'a1' is alive: end its process first" in refused.text
    await world.rows(SILENT, s=31)
    ok(await world.agent.delete(AGENT))
    leg = await world.row("SELECT state, reason FROM legs")
    assert (leg["state"], leg["reason"]) == ("LOST", "agent a1 was removed")
    assert ok(await world.user.get("/api/v1/agents"))["agents"] == []
    assert (await world.agent.delete(AGENT)).status_code == 404
    # Should it live after all, it is an agent again.
    world.running.clear()
    await world.register(slots=1)
    assert (await world.launched()).spec["run_id"] == 2


async def test_agents_that_are_gone_for_a_week_are_forgotten(world: World) -> None:
    for name in ("a1", "a2", "a3", "a4"):
        await world.register(agent_id=name)
    ok(await world.agent.post("/api/v1/agents/a2/disable"))
    ok(await world.agent.post("/api/v1/agents/a3/slots/1/disable"))
    await world.rows(SILENT, s=6 * 86400)
    await reconcile(world)
    assert len(await world.rows("SELECT id FROM agents")) == 4
    await world.rows(SILENT, s=8 * 86400)
    await world.register(agent_id="a4")
    await reconcile(world)
    # They would come back enabled.
    left = await world.rows("SELECT id FROM agents ORDER BY id")
    assert [row["id"] for row in left] == ["a2", "a3", "a4"]
