"""A supervisor that is not honest says where its ports are, and what its trial starts from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from determined.common.wire import doors, paths, shells
from tests.integration.control.test_doors import order, rung, wanted
from tests.integration.control.world import CONFIG, Trial, World, ok

AGENT = "10.1.2.3"
PORTS = CONFIG + "environment: {proxy_ports: [{proxy_port: 8265}]}\n"


@pytest.fixture
async def control(
    service_app: FastAPI, user: httpx.AsyncClient, agent: httpx.AsyncClient
) -> AsyncIterator[World]:
    made = World(service_app, user, agent)
    yield made
    await made.close()


async def running(leg: Trial, address: str, *ports: dict[str, Any]) -> httpx.Response:
    """The report of the leg's supervisor, with the supervisor's token."""
    supervisor = leg.world.client(leg.spec["supervisor_token"])
    path = paths.RUNNING.format(allocation_id=leg.allocation_id)
    return await supervisor.post(path, json={"address": address, "ports": list(ports)})


async def ports_of(world: World) -> list[dict[str, Any]]:
    return await world.rows(
        "SELECT name, address, port, unauthenticated, shared FROM allocation_ports ORDER BY name"
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.1.2.4", "postgres", ""])
async def test_a_supervisor_leads_the_proxy_to_no_other_address(
    control: World, address: str
) -> None:
    """Gains: servers that only the service's machine reaches, Postgres or a cloud's keys, through the task's
    page."""
    await control.register(slots=1, address=AGENT)
    await control.started(PORTS)
    leg = await control.launched()
    refused = await running(leg, address, {"name": "8265", "port": 8265})
    assert refused.status_code == 400, refused.text
    assert f"are reached at {AGENT}, where agent a1 is, not at '{address}'" in refused.text
    assert await ports_of(control) == []
    ok(await running(leg, AGENT, {"name": "8265", "port": 2700, "behind": 8265}))


async def test_a_supervisor_names_only_ports_that_its_leg_was_given(control: World) -> None:
    """Gains: other servers of the agent's machine, including the agent's; a port open to everybody."""
    await control.register(slots=1)
    await control.started(PORTS)
    leg = await control.launched()
    for port in (
        {"name": "8265", "port": 5432},
        {"name": "8265", "port": 2700},
        {"name": "8265", "port": 2700, "behind": 5432},
        {"name": "8265", "port": 22, "behind": 8265},
        {"name": "5432", "port": 5432},
        {"name": "notebook", "port": 2700},
    ):
        refused = await running(leg, "127.0.0.1", port)
        assert refused.status_code == 400 and "was given" in refused.text, refused.text
    ok(
        await running(
            leg,
            "127.0.0.1",
            {"name": "8265", "port": 8265, "unauthenticated": True, "shared": True},
        )
    )
    (found,) = await ports_of(control)
    assert (found["unauthenticated"], found["shared"]) == (False, False)


async def test_a_supervisor_takes_no_port_of_another_task(control: World) -> None:
    """Gains: the server of another's notebook, which trusts whoever the proxy lets in."""
    await control.register(slots=1)
    await control.user.post("/api/v1/notebooks", json={"config": {"resources": {"slots": 0}}})
    victim = await control.launched()
    (given,) = victim.spec["ports"]
    for number in (5432, 2599, 3501):
        refused = await running(victim, "127.0.0.1", {"name": given["name"], "port": number})
        assert refused.status_code == 400, refused.text
    ok(await running(victim, "127.0.0.1", {"name": given["name"], "port": 2605}))
    config = PORTS.replace("8265", "2605")
    await control.started(config)
    leg = await control.launched()
    refused = await running(leg, "127.0.0.1", {"name": "2605", "port": 2605})
    assert refused.status_code == 409 and "another allocation's" in refused.text, refused.text


async def test_a_door_is_on_its_agent(control: World) -> None:
    """Gains: the same, by what ``det exec`` sends, and the secret of the door."""
    await control.register(slots=1, address=AGENT)
    await control.started()
    leg = await control.launched()
    ok(await leg.started())
    asked = wanted(control, leg.spec["task_id"])
    await rung(control)
    hash_ = (await order(control, leg))["secret_hash"]
    supervisor = control.client(leg.spec["supervisor_token"])
    path = paths.DOOR.format(allocation_id=leg.allocation_id)
    state = {"node": 0, "secret_hash": hash_, "open": True, "address": AGENT, "port": 2700}
    for wrong in ({"address": "127.0.0.1"}, {"port": 22}, {"port": 2700, "behind": 22}):
        refused = await supervisor.post(path, json={**state, **wrong})
        assert refused.status_code == 400, refused.text
    assert await ports_of(control) == [] and not asked.done()
    ok(await supervisor.post(path, json=state))
    found = ok(await asked)
    assert shells.hash_of(found["secret"]) == hash_ and found["port"] == doors.port_name(0)


async def test_under_a_stock_worker_ports_are_where_the_report_comes_from(control: World) -> None:
    """Gains: the same, without an agent that has sent its address."""
    await control.register(slots=1)
    await control.started(PORTS)
    leg = await control.launched()
    async with control.app.state.db.tx() as conn:
        await conn.exec_driver_sql("UPDATE allocations SET agent_id = 'prefect-worker@h'")
    refused = await running(leg, AGENT, {"name": "8265", "port": 8265})
    assert refused.status_code == 400 and "are reached at 127.0.0.1" in refused.text
    ok(await running(leg, "127.0.0.1", {"name": "8265", "port": 8265}))


async def test_an_agent_of_the_release_before_is_believed_about_its_ports(control: World) -> None:
    """It does not say its address, and its containers are reached at theirs."""
    await control.register(slots=1, address="")
    await control.started(PORTS)
    leg = await control.launched()
    ok(await running(leg, "172.17.0.2", {"name": "8265", "port": 8265}))
