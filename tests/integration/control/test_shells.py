"""Shells by the REST API: who gets the key, the process' reports, idle shells."""

from __future__ import annotations

from typing import Any

from determined.common.wire import shells
from determined_service.access.sessions import open_session
from determined_service.base.ssh_keys import new_key
from determined_service.lifecycle.kinds.shell import ENTRYPOINT
from tests.integration.control.test_launched import another_user
from tests.integration.control.world import World, ok

SHELLS = "/api/v1/shells"
HOST_KEY = " ".join(new_key("").public.split()[:2])


async def shown(world: World, task_id: str) -> dict[str, Any]:
    shell: dict[str, Any] = ok(await world.user.get(f"{SHELLS}/{task_id}"))["shell"]
    return shell


async def test_a_shell_opens_for_its_owner(world: World) -> None:
    await world.register(slots=1)
    answer = ok(await world.user.post(SHELLS, json={"config": {"idle_timeout": "1h"}}))
    shell, config = answer["shell"], answer["config"]
    task_id, door = shell["id"], shells.DOOR.format(task_id=shell["id"])
    assert config["entrypoint"] == ENTRYPOINT
    assert shell["privateKey"].startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    # Its own configuration may be sent again, another program may not.
    again = {"config": config, "preview": True}
    assert ok(await world.user.post(SHELLS, json=again))["config"] == config
    other = {"config": {"entrypoint": ["bash"]}}
    refused = await world.user.post(SHELLS, json=other)
    assert refused.status_code == 400 and "a shell has its own" in refused.json()["message"]

    process = await world.launched()
    given = {"account": "ann", "host_key": HOST_KEY}
    # Its ports are unknown until the agent reports that it runs.
    assert (await process.client.put(door, json=given)).status_code == 409
    spec = process.spec
    secret = shells.terminal_secret(shell["privateKey"])
    assert spec["env"][shells.SECRET_HASH] == shells.hash_of(secret)
    assert spec["env"][shells.PUBLIC_KEY] == shell["publicKey"]
    assert "PRIVATE" not in str(spec) and secret not in str(spec)
    ports = [{**port, "port": 2600 + at} for at, port in enumerate(spec["ports"])]
    ok(await process.started(ports=ports, address="127.0.0.1"))
    assert (await shown(world, task_id))["state"] == "STATE_WAITING"
    for wrong in ({**given, "account": "-oProxyCommand=x"}, {**given, "host_key": "x\nHost *"}):
        assert (await process.client.put(door, json=wrong)).status_code == 400
    assert (await world.user.put(door, json=given)).status_code == 409
    assert (await (await another_user(world, "eve")).put(door, json=given)).status_code == 403
    ok(await process.client.put(door, json=given))
    ready = await shown(world, task_id)
    assert (ready["state"], ready["hostKey"]) == ("STATE_RUNNING", HOST_KEY)
    assert ready["agentUserGroup"]["user"] == "ann"
    (found,) = ok(await world.user.get(f"/api/v1/tasks/{task_id}"))["task"]["allocations"]
    assert found["isReady"] is True
    assert {row["ready"] for row in await world.rows("SELECT ready FROM allocation_ports")} == {
        True
    }

    # Only the owner gets the key, and only by the route of the single shell.
    (admin_id,) = await world.rows("SELECT id FROM users WHERE username = 'admin'")
    async with world.app.state.db.tx() as conn:
        admin = world.client(await open_session(conn, admin_id["id"], 10))
    one = f"{SHELLS}/{task_id}"
    assert "privateKey" in ok(await world.user.get(one))["shell"]
    for somebody in (admin, await another_user(world, "joe"), process.client):
        assert "PRIVATE" not in (await somebody.get(one)).text
    for path in (SHELLS, f"/api/v1/tasks/{task_id}", f"/api/v1/tasks/{task_id}/config"):
        assert "PRIVATE" not in (await world.user.get(path)).text
    assert "PRIVATE" not in str(await world.rows("SELECT payload FROM prefect_outbox"))

    # The shell is unused since its start; then a user connects.
    async def is_idle() -> bool:
        (row,) = await world.rows("SELECT idle_since, idle_timeout_s FROM tasks")
        assert row["idle_timeout_s"] == 3600
        return row["idle_since"] is not None

    assert await is_idle()
    ok(await process.client.put(f"{one}/report_idle", json={"idle": False}))
    assert not await is_idle()
    ok(await admin.post(f"{one}/kill", json={}))
    ok(await process.exited(exit_code=None, signal=9))
    assert (await shown(world, task_id))["exitStatus"] == "killed by the user"
