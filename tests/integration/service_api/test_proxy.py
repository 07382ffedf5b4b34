"""The proxy to tasks: a real service with its proxy process, and a server of a task for each question."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy as sa
import websockets
from fastapi import FastAPI

from determined.common.wire.legs import Port
from determined_registry.database.tables import allocation_ports, task_visits, user_sessions
from determined_service.access.tokens import token_hash
from determined_service.app import create_app
from determined_service.base.db import Database
from determined_service.base.settings import Settings
from determined_service.proxy.server import REMEMBER_S
from determined_tasks.gates import Gates
from tests.integration.conftest import AGENT_TOKEN, Template, serve
from tests.integration.service_api.world import Leg, World
from tests.waiting import TIMEOUT_S, until_async

Scripted = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Proxied:
    """A service with its proxy, and the means to give it tasks."""

    url: str
    app: FastAPI
    world: World
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def host(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    async def agent(self, path: str, body: dict[str, Any]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {AGENT_TOKEN}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers) as client:
            return await client.post(f"/internal/v1/{path}", json=body)

    async def task(self, port: int, *, ready: bool = True, **facts: Any) -> Leg:
        """A running task whose process serves ``port``."""
        leg = await self.world.leg()
        found = {"name": "8265", "port": port, "default": True, **facts}
        answer = await self.agent(
            f"allocations/{leg.allocation_id}/running", {"address": "127.0.0.1", "ports": [found]}
        )
        assert answer.status_code == 200, answer.text
        if ready:
            answer = await self.agent(
                f"allocations/{leg.allocation_id}/port", {"name": found["name"], "ready": True}
            )
            assert answer.status_code == 200, answer.text
        return leg

    async def raw(self, sent: bytes, host: str | None = None) -> bytes:
        """Everything that is answered to these bytes until the connection ends."""
        reader, writer = await asyncio.open_connection(*self.host)
        writer.write(sent)
        writer.write_eof() if host == "eof" else None
        async with asyncio.timeout(TIMEOUT_S):
            answer = await reader.read()
        writer.close()
        return answer


@pytest.fixture
def service(settings: Settings, template: Template) -> Iterator[tuple[str, FastAPI]]:
    app = create_app(settings)
    with serve(app) as url:
        yield url, app


@pytest.fixture
async def proxied(
    service: tuple[str, FastAPI], settings: Settings, template: Template
) -> AsyncIterator[Proxied]:
    url, app = service
    db = Database(settings.db_url)
    # The test shares only the rows with the app's event loop.
    stand_in = cast("FastAPI", SimpleNamespace(state=SimpleNamespace(db=db)))
    try:
        yield Proxied(url, app, World(stand_in), template.token)
    finally:
        await db.close()


@contextlib.asynccontextmanager
async def serving(script: Scripted) -> AsyncIterator[int]:
    """A task's server; its port."""
    server = await asyncio.start_server(script, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        server.close()


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def echo(
    seen: list[bytes], answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
) -> Scripted:
    """A server that writes down each head, and answers the same to all."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                seen.append(await head_of(reader))
                writer.write(answer)
        writer.close()

    return script


async def test_a_request_reaches_the_task_without_the_visitors_login(proxied: Proxied) -> None:
    seen: list[bytes] = []
    answer = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: a=b; Path=/\r\nService-Worker-Allowed: /\r\n"
        b"Connection: x-secret\r\nX-Secret: 1\r\nClear-Site-Data: *\r\n\r\nok"
    )
    async with serving(echo(seen, answer)) as port, httpx.AsyncClient() as client:
        leg = await proxied.task(port)
        for address in (f"{leg.task_id}", f"{leg.task_id}:8265"):
            found = await client.get(
                f"{proxied.url}/proxy/{address}/deep/page?x=%20y",
                headers={**proxied.headers, "Cookie": "determined-session=secret; mine=1"},
            )
            assert (found.status_code, found.text) == (200, "ok")
            # A page at the service's address does not have the service's origin, and stores nothing there.
            assert "sandbox" in found.headers["content-security-policy"]
            assert "allow-same-origin" not in found.headers["content-security-policy"]
            for gone in ("set-cookie", "service-worker-allowed", "x-secret", "clear-site-data"):
                assert gone not in found.headers
        # The same connection serves the service's own addresses, and the task's again.
        assert (await client.get(f"{proxied.url}/health")).status_code == 200
        assert (
            await client.get(f"{proxied.url}/proxy/{leg.task_id}/", headers=proxied.headers)
        ).text == "ok"
    first = seen[0].decode()
    assert first.startswith("GET /deep/page?x=%20y HTTP/1.1\r\n")
    assert proxied.token not in first and "secret" not in first and "mine=1" not in first
    assert f"X-Forwarded-Prefix: /proxy/{leg.task_id}\r\n" in first


async def test_bodies_stream_both_ways(proxied: Proxied) -> None:
    """The task answers each part of the body before the next one is sent."""
    parts: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while size := int((await reader.readline()).strip(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
            writer.write(b"%x\r\n%b\r\n" % (size, parts[-1]))
        writer.write(b"0\r\n\r\n")

    async with serving(script) as port:
        leg = await proxied.task(port)
        reader, writer = await asyncio.open_connection(*proxied.host)
        writer.write(
            f"POST /proxy/{leg.task_id}/ HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n"
            f"Authorization: Bearer {proxied.token}\r\n\r\n".encode()
        )
        async with asyncio.timeout(TIMEOUT_S):
            await head_of(reader)
            for part in (b"one", b"two" * 1000):
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                assert await reader.readuntil(part) == b"%x\r\n%b" % (len(part), part)
                await reader.readline()
            writer.write(b"0\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"0\r\n\r\n"
        writer.close()


async def test_websockets_and_tunnels(proxied: Proxied) -> None:
    async def talk(socket: Any) -> None:
        async for message in socket:
            await socket.send(message)

    async with websockets.serve(talk, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        leg = await proxied.task(port)
        address = f"{proxied.url.replace('http', 'ws', 1)}/proxy/{leg.task_id}/"
        async with websockets.connect(address, additional_headers=proxied.headers) as visitor:
            await visitor.send("hello")
            assert await visitor.recv() == "hello"
            # The end of the allocation ends the connection.
            end = {"kind": "exited", "exit_code": 0}
            assert (
                await proxied.agent(f"allocations/{leg.allocation_id}/exit", end)
            ).status_code == 200
            with pytest.raises(websockets.ConnectionClosed):
                async with asyncio.timeout(TIMEOUT_S):
                    await visitor.recv()
    assert await proxied.world.rows(sa.select(allocation_ports.c.name)) == []

    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.read(1 << 16):
            writer.write(line.upper())
        writer.write(b"bye")
        writer.close()

    async with serving(upper) as port:
        leg = await proxied.task(port, tcp=True)
        address = f"{proxied.url.replace('http', 'ws', 1)}/proxy/{leg.task_id}:8265/"
        async with websockets.connect(address, additional_headers=proxied.headers) as visitor:
            await visitor.send(b"ssh-2.0")
            assert await visitor.recv() == b"SSH-2.0"
            whole = b"x" * 300_000
            await visitor.send(whole)
            found = b""
            while len(found) < len(whole):
                found += cast("bytes", await visitor.recv())
            assert found == whole.upper()
        async with httpx.AsyncClient(headers=proxied.headers) as client:
            refused = await client.get(f"{proxied.url}/proxy/{leg.task_id}/")
        assert refused.status_code == 400 and "determined.cli.tunnel" in refused.text


async def test_the_clients_tunnel(proxied: Proxied) -> None:
    """`python -m determined.cli.tunnel`, by standard input and by a port of this machine."""

    async def reversed_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # It answers when it has seen the end.
        writer.write((await reader.read(-1))[::-1])
        writer.close()

    async with serving(reversed_lines) as port:
        leg = await proxied.task(port)
        program = [sys.executable, "-m", "determined.cli.tunnel", proxied.url]
        environment = {**os.environ, "DET_USER_TOKEN": proxied.token, "DET_MASTER": proxied.url}
        piped = await asyncio.create_subprocess_exec(
            *program, str(leg.trial_id), env=environment, stdin=-1, stdout=-1, stderr=-1
        )
        whole = os.urandom(200_000)
        out, err = await asyncio.wait_for(piped.communicate(whole), TIMEOUT_S)
        assert (out, piped.returncode) == (whole[::-1], 0), err
        listens = await asyncio.create_subprocess_exec(
            *program, f"{leg.task_id}:8265", "--listen", "0", env=environment, stderr=-1
        )
        try:
            assert listens.stderr is not None
            line = await asyncio.wait_for(listens.stderr.readline(), TIMEOUT_S)
            reader, writer = await asyncio.open_connection("127.0.0.1", int(line.split()[1]))
            writer.write(b"abc")
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b"cba"
            writer.close()
        finally:
            listens.terminate()
            await listens.wait()
        refused = await asyncio.create_subprocess_exec(
            *program, f"{leg.task_id}:99", env=environment, stdin=-1, stdout=-1, stderr=-1
        )
        _, err = await asyncio.wait_for(refused.communicate(b""), TIMEOUT_S)
        assert refused.returncode == 1 and b"has no port 99; it has 8265" in err


async def test_rights(proxied: Proxied) -> None:
    """The proxy refuses visitors without a login, other users and processes; it admits permitted users only
    while their session lasts."""
    seen: list[bytes] = []
    async with serving(echo(seen)) as port, httpx.AsyncClient(base_url=proxied.url) as client:
        leg = await proxied.task(port)
        address = f"/proxy/{leg.task_id}/"
        admin = await client.post("/api/v1/auth/login", json={"username": "admin", "password": ""})
        boss = {"Authorization": f"Bearer {admin.json()['token']}"}
        made = await client.post(
            "/api/v1/users",
            json={"user": {"username": "eve", "active": True}, "password": "long-enough"},
            headers=boss,
        )
        assert made.status_code == 200, made.text
        eve = await client.post(
            "/api/v1/auth/login", json={"username": "eve", "password": "long-enough"}
        )
        hers = {"Authorization": f"Bearer {eve.json()['token']}"}
        process = {"Authorization": f"Bearer token-of-{leg.allocation_id}"}
        assert (await client.get(address)).status_code == 401
        assert (await client.get(address, headers={"Authorization": "Bearer x"})).status_code == 401
        assert (await client.get(address, headers=hers)).status_code == 403
        assert (await client.get(address, headers=process)).status_code == 403
        assert seen == []
        assert (await client.get(address, headers=boss)).status_code == 200
        # A ticket is refused where it would be worth nothing, and in the same words.
        visits = f"/api/v1/tasks/{leg.task_id}/visits"
        told = (await client.get(address, headers=hers)).json()["message"]
        refused = await client.post(visits, json={}, headers=hers)
        assert (refused.status_code, refused.json()["message"]) == (403, told)
        form = {"username": "eve", "password": "long-enough"}
        own = {"Sec-Fetch-Site": "same-origin"}
        page = await client.post(f"/task-login?task={leg.task_id}", data=form, headers=own)
        assert page.status_code == 403 and "may visit task" in page.text
        assert (await client.post(visits, json={}, headers=boss)).status_code == 200
        other = await client.post(visits, json={"port": "99"}, headers=boss)
        assert other.status_code == 404 and "has no port 99; it has 8265" in other.text
        nothing = "/api/v1/tasks/no-such-task/visits"
        assert (await client.post(nothing, json={}, headers=boss)).status_code == 404
        shared = await proxied.task(port, shared=True)
        assert (await client.get(f"/proxy/{shared.task_id}/", headers=hers)).status_code == 200
        visits = f"/api/v1/tasks/{shared.task_id}/visits"
        assert (await client.post(visits, json={}, headers=hers)).status_code == 200
        assert (await client.get(f"/proxy/{shared.task_id}/")).status_code == 401
        public = await proxied.task(port, unauthenticated=True)
        assert (await client.get(f"/proxy/{public.task_id}/")).status_code == 200
        # An open connection ends with its session.
        async with websockets.serve(lambda one: one.wait_closed(), "127.0.0.1", 0) as server:
            task = await proxied.task(next(iter(server.sockets)).getsockname()[1])
            where = f"{proxied.url.replace('http', 'ws', 1)}/proxy/{task.task_id}/"
            async with websockets.connect(where, additional_headers=boss) as visitor:
                await client.post("/api/v1/auth/logout", headers=boss)
                with pytest.raises(websockets.ConnectionClosed):
                    async with asyncio.timeout(TIMEOUT_S):
                        await visitor.recv()


async def test_a_ticket_opens_one_task_in_a_browser_once(proxied: Proxied) -> None:
    seen: list[bytes] = []
    answer = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: own=1; Domain=localhost; Path=/\r\n"
        b"Set-Cookie: determined-visit=forged\r\n\r\nok"
    )
    async with serving(echo(seen, answer)) as port, httpx.AsyncClient() as client:
        leg = await proxied.task(port)
        other = await proxied.task(port)
        made = await client.post(
            f"{proxied.url}/api/v1/tasks/{leg.task_id}/visits",
            json={"path": "/lab?a=1"},
            headers=proxied.headers,
        )
        assert made.status_code == 200, made.text
        way_in = urlsplit(made.json()["url"])
        label = leg.task_id.replace(".", "--")
        assert way_in.netloc == f"{label}.localhost:{proxied.host[1]}"

        async def at(host: str, path: str, **headers: str) -> httpx.Response:
            # This machine's resolver may not know names below localhost.
            return await client.get(
                proxied.url + path,
                headers={"Host": f"{host}.localhost:{proxied.host[1]}", **headers},
            )

        page = {"Accept": "text/html"}
        refused = await at(label, "/lab", **page)
        assert refused.status_code == 401 and "/task-login?task=" in refused.text
        entered = await at(label, f"{way_in.path}?{way_in.query}")
        assert (entered.status_code, entered.headers["location"]) == (302, "/lab?a=1")
        given = entered.headers["set-cookie"]
        assert "HttpOnly" in given and "SameSite" in given and "omain" not in given
        assert (await at(label, f"{way_in.path}?{way_in.query}")).status_code == 401
        cookie = {"Cookie": f"own=2; {given.partition(';')[0]}"}
        found = await at(label, "/lab?a=1", Authorization="token of-the-task", **cookie)
        assert found.text == "ok"
        assert found.headers.get_list("set-cookie") == ["own=1; Path=/"]
        assert b"Cookie: own=2\r\n" in seen[-1] and b"determined-visit" not in seen[-1]
        assert b"Authorization: token of-the-task\r\n" in seen[-1]
        # Not at another task's name, not for another site's page, and worth nothing at the service itself.
        assert (await at(other.task_id.replace(".", "--"), "/", **cookie)).status_code == 401
        elsewhere = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}
        assert (await at(label, "/", **cookie, **elsewhere)).status_code == 403
        framed = {
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "iframe",
        }
        assert (await at(label, "/", **cookie, **framed)).status_code == 403
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        hostile = {"Origin": f"http://evil.localhost:{proxied.host[1]}"}
        assert (await at(label, "/", **cookie, **upgrade, **hostile)).status_code == 403
        mine = f"{proxied.url}/api/v1/me"
        assert (await client.get(mine, headers=cookie)).status_code == 401
        assert (
            await client.get(f"{proxied.url}/proxy/{leg.task_id}/", headers=cookie)
        ).status_code == 401

        async def is_refused() -> bool:
            return (await at(label, "/", **cookie)).status_code == 401

        # It ends after half a day,
        for hours in (13, 11):
            made_at = sa.func.now() - sa.func.make_interval(0, 0, 0, 0, hours)
            async with proxied.world.db.tx() as conn:
                await conn.execute(sa.update(task_visits).values(created_at=made_at))
            if hours > 12:
                await until_async("the visit over", is_refused)
            else:
                await until_async("the visit back", lambda: _not(is_refused))
        # and with the session it was made from.
        async with proxied.world.db.tx() as conn:
            gone = user_sessions.c.token_hash == token_hash(proxied.token)
            await conn.execute(sa.delete(user_sessions).where(gone))
        await until_async("the visit over", is_refused)


async def test_a_waiting_task_tells_its_reason(proxied: Proxied) -> None:
    async with httpx.AsyncClient(headers=proxied.headers) as client:

        async def look(task_id: str, **headers: str) -> httpx.Response:
            return await client.get(f"{proxied.url}/proxy/{task_id}/", headers=headers)

        leg = await proxied.task(1, ready=False)
        answer = await look(leg.task_id)
        assert (
            answer.status_code == 502
            and "nothing listens at port 1 yet" in answer.json()["message"]
        )
        page = await look(leg.task_id, Accept="text/html")
        assert 'http-equiv="refresh"' in page.text and page.headers["retry-after"]
        state = {"name": "8265", "ready": True}
        await proxied.agent(f"allocations/{leg.allocation_id}/port", state)

        async def is_gone() -> bool:
            return "does not answer" in (await look(leg.task_id)).text

        await until_async("its server looked for", is_gone)
        assert (await look(f"{leg.task_id}:99")).status_code == 404
        assert (await look("no-such-task")).status_code == 404
        await proxied.agent(
            f"allocations/{leg.allocation_id}/exit", {"kind": "exited", "exit_code": 3}
        )

        async def says() -> str:
            return str((await look(leg.task_id)).json()["message"])

        await until_async("the end told", lambda: _has(says, "code 3"))


async def _not(is_so: Callable[[], Awaitable[bool]]) -> bool:
    return not await is_so()


async def _has(says: Callable[[], Awaitable[str]], wanted: str) -> bool:
    return wanted in await says()


async def test_an_ambiguous_request_never_reaches_a_task(proxied: Proxied) -> None:
    seen: list[bytes] = []
    async with serving(echo(seen)) as port:
        leg = await proxied.task(port, unauthenticated=True)
        for framing in (
            "Content-Length: 4\r\nTransfer-Encoding: chunked",
            "Content-Length: 4\r\nContent-Length: 5",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding : chunked",
            "X: 1\r\n folded",
            "X: 1\n\nY: 2",
        ):
            answer = await proxied.raw(
                f"POST /proxy/{leg.task_id}/ HTTP/1.1\r\nHost: here\r\n{framing}\r\n\r\nbody".encode()
            )
            assert answer.split(b" ")[1] in (b"400", b"501"), framing
    assert seen == []


async def test_an_answer_with_more_than_it_says_reaches_no_other_visitor(proxied: Proxied) -> None:
    extra = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + extra
    async with serving(echo([], answer)) as port, httpx.AsyncClient() as client:
        leg = await proxied.task(port, unauthenticated=True)
        for _ in range(3):
            assert (await client.get(f"{proxied.url}/proxy/{leg.task_id}/")).text == "ok"


async def test_the_proxy_is_killed_and_visitors_come_again(proxied: Proxied) -> None:
    async with serving(echo([])) as port, httpx.AsyncClient(headers=proxied.headers) as client:
        leg = await proxied.task(port)
        address = f"{proxied.url}/proxy/{leg.task_id}/"
        assert (await client.get(address)).text == "ok"
        first = proxied.app.state.proxy.pid
        os.kill(first, signal.SIGKILL)

        async def answers() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return (await client.get(address)).text == "ok"
            return False

        await until_async("another proxy", answers)
        assert proxied.app.state.proxy.pid not in (None, first)
        assert (await client.get(f"{proxied.url}/health")).status_code == 200


async def test_a_task_on_another_machine_is_behind_a_gate(proxied: Proxied) -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ninside")
        await reader.read()
        writer.close()

    leg = await proxied.world.leg()
    path = f"{proxied.url}/proxy/{leg.task_id}/"
    async with serving(page) as port, httpx.AsyncClient(headers=proxied.headers) as client:
        wanted = [Port("8265", port, default=True)]

        async def seen(gates: Gates) -> tuple[int, str]:
            """The answer to a visitor once a supervisor has reported these."""
            ports = [one.to_json() for one in gates.ports]
            report = {"address": "127.0.0.1", "ports": ports}
            answer = await proxied.agent(f"allocations/{leg.allocation_id}/running", report)
            assert answer.status_code == 200, answer.text
            state = {"name": "8265", "ready": True}
            await proxied.agent(f"allocations/{leg.allocation_id}/port", state)
            # The proxy asks the service anew then.
            await asyncio.sleep(REMEMBER_S + 0.1)
            found = await client.get(path)
            return found.status_code, found.text

        first = Gates(wanted, "127.0.0.1", "127.0.0.1", AGENT_TOKEN, leg.allocation_id)
        assert await seen(first) == (200, "inside")
        first.end()
        tasks = (await client.get(f"{proxied.url}/api/v1/tasks")).json()["allocationIdToSummary"]
        # The process' port number, which people know, not the gate's.
        assert tasks[leg.allocation_id]["proxyPorts"] == [
            {
                "port": port,
                "proxyTcp": False,
                "serviceId": leg.task_id,
                "unauthenticated": False,
            }
        ]
        # Of a supervisor that takes over.
        second = Gates(wanted, "127.0.0.1", "127.0.0.1", AGENT_TOKEN, leg.allocation_id)
        assert await seen(second) == (200, "inside")
        second.end()
        # Another process' port: the proxy cannot connect there, so its visitors do not reach that process.
        other = Gates(wanted, "127.0.0.1", "127.0.0.1", "another", leg.allocation_id)
        status, text = await seen(other)
        other.end()
    assert status == 502 and "does not answer" in text
