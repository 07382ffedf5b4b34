"""A right is taken from a user whose notebook is open, and whose trial trains."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import websockets

from determined_service.lifecycle import configuration
from tests.integration.roles import RBAC, give, take
from tests.integration.service_api.test_proxy import Proxied, echo, proxied, service, serving
from tests.integration.service_api.world import report
from tests.waiting import TIMEOUT_S, until_async

__all__ = ["proxied", "service"]

CONFIG = "{name: another, entrypoint: x, searcher: {name: custom, metric: loss, unit: epochs}}"


async def test_a_role_is_taken(proxied: Proxied) -> None:
    app = proxied.world.app
    await give(app, "determined", "Editor", 1)
    await configuration.put(proxied.world.db, RBAC, proxied.app.state.settings)
    async with serving(echo([])) as port:
        leg = await proxied.task(port)
        page = f"/proxy/{leg.task_id}/"
        own = {"Authorization": f"Bearer token-of-{leg.allocation_id}"}
        submitted = {"config": CONFIG, "unmanaged": True}
        async with httpx.AsyncClient(base_url=proxied.url, timeout=60) as client:

            async def visit() -> httpx.Response:
                return await client.get(page, headers=proxied.headers)

            async def send(steps: int) -> int:
                body = {"run_id": leg.run_id, "reports": [report(steps, loss=0.5)]}
                path = f"/api/v1/trials/{leg.trial_id}/metrics/batch"
                return (await client.post(path, json=body, headers=own)).status_code

            async def submit() -> httpx.Response:
                return await client.post("/api/v1/experiments", json=submitted, headers=own)

            async def is_open() -> bool:
                return (await visit()).status_code == 200

            await until_async("the roles hold, and the page is open", is_open)
            assert await send(1) == 200
            assert (await submit()).status_code == 200

            await take(app, "determined")

            async def is_gone() -> bool:
                return (await visit()).status_code == 404

            await until_async("the page is not found", is_gone)
            assert f"task {leg.task_id} does not exist" in (await visit()).text
            # The trial goes on to its end, and begins nothing.
            assert await send(2) == 200
            checkpoint = await client.post(
                "/api/v1/checkpoints",
                json={
                    "uuid": "5f1b1f5c-5b54-4b8c-9d7a-2f6d4f0b3c11",
                    "allocationId": leg.allocation_id,
                },
                headers=own,
            )
            assert checkpoint.status_code == 200, checkpoint.text
            refused = await submit()
            assert refused.status_code == 403
            assert "that needs the role Editor" in refused.json()["message"]

            # Nor does the user, who is still logged in.
            mine = await client.get("/api/v1/me", headers=proxied.headers)
            assert mine.status_code == 200
            paused = await client.post(
                f"/api/v1/experiments/{leg.experiment_id}/pause", headers=proxied.headers
            )
            assert paused.status_code == 404


Ending = Callable[[Proxied, httpx.AsyncClient, httpx.AsyncClient], Awaitable[None]]


async def _role(proxied: Proxied, mine: httpx.AsyncClient, admin: httpx.AsyncClient) -> None:
    await take(proxied.world.app, "determined")


async def _token(proxied: Proxied, mine: httpx.AsyncClient, admin: httpx.AsyncClient) -> None:
    """Revokes the user's access tokens."""
    found = (await admin.get("/api/v1/tokens")).json()["tokenInfo"]
    for one in found:
        answer = await admin.patch(f"/api/v1/tokens/{one['id']}", json={"setRevoked": True})
        assert answer.status_code == 200, answer.text


async def _account(proxied: Proxied, mine: httpx.AsyncClient, admin: httpx.AsyncClient) -> None:
    me = (await mine.get("/api/v1/me")).json()["user"]["id"]
    answer = await admin.patch(f"/api/v1/users/{me}", json={"active": False})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("by_cookie", [False, True], ids=["token", "cookie"])
@pytest.mark.parametrize("end", [_role, _token, _account])
async def test_an_open_websocket_ends_with_the_right_to_it(
    proxied: Proxied, end: Ending, by_cookie: bool
) -> None:
    await give(proxied.world.app, "determined", "Editor", 1)
    await give(proxied.world.app, "determined", "TokenCreator")
    await configuration.put(proxied.world.db, RBAC, proxied.app.state.settings)

    async def talk(socket: Any) -> None:
        async for message in socket:
            await socket.send(message)

    async with (
        websockets.serve(talk, "127.0.0.1", 0) as server,
        httpx.AsyncClient(base_url=proxied.url, timeout=60) as mine,
        httpx.AsyncClient(base_url=proxied.url, timeout=60) as admin,
    ):
        login = {"username": "admin", "password": ""}
        boss = (await admin.post("/api/v1/auth/login", json=login)).json()["token"]
        admin.headers["Authorization"] = f"Bearer {boss}"
        mine.headers.update(proxied.headers)

        own = (await mine.get("/api/v1/me")).json()["user"]["id"]
        wanted = {"userId": own, "lifespan": "1h", "description": "a"}

        async def has_made_a_token() -> bool:
            answer = await mine.post("/api/v1/tokens", json=wanted)
            if answer.status_code == 200:
                mine.headers["Authorization"] = f"Bearer {answer.json()['token']}"
            return answer.status_code == 200

        await until_async("the roles hold, and there is an access token", has_made_a_token)
        leg = await proxied.task(next(iter(server.sockets)).getsockname()[1])
        host, port = proxied.host
        address = f"ws://{host}:{port}/proxy/{leg.task_id}/"
        sent = {"Authorization": mine.headers["Authorization"]}
        if by_cookie:
            made = await mine.post(f"/api/v1/tasks/{leg.task_id}/visits", json={})
            assert made.status_code == 200, made.text
            way_in = urlsplit(made.json()["url"])
            # This machine's resolver may not know names below localhost.
            entered = await httpx.AsyncClient().get(
                f"{proxied.url}{way_in.path}?{way_in.query}", headers={"Host": way_in.netloc}
            )
            address = f"ws://{way_in.netloc}/"
            cookie = entered.headers["set-cookie"].partition(";")[0]
            sent = {"Cookie": cookie, "Origin": f"http://{way_in.netloc}"}
        async with websockets.connect(
            address, host=host, port=port, additional_headers=sent
        ) as visitor:
            await visitor.send("hello")
            assert await visitor.recv() == "hello"
            await end(proxied, mine, admin)
            with pytest.raises(websockets.ConnectionClosed):
                async with asyncio.timeout(TIMEOUT_S):
                    await visitor.recv()
