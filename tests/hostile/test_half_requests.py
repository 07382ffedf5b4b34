"""Connections of a client without a login that send less than a request."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from determined_service.__main__ import ACCEPTED_PER_TURN
from determined_service.base.trusted_proxies import TrustedProxies
from determined_service.proxy import lobby, server
from determined_service.proxy.http_protocol import HttpProtocol
from determined_service.proxy.lobby import Lobby
from tests.hostile.servers import serving
from tests.waiting import TIMEOUT_S, until_async

HELLO = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
MOST = 50
FEW = 10


async def answer(request: Request) -> Response:
    """Once the whole body has arrived."""
    await request.body()
    return Response("ok")


app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """A server that gives a head or a body one second, and holds 50 connections."""
    monkeypatch.setattr(lobby, "HEAD_S", 1.0)
    monkeypatch.setattr(lobby, "BODY_S", 1.0)
    monkeypatch.setattr(lobby, "LOOK_S", 0.05)

    class Small(HttpProtocol):
        lobby = Lobby(MOST)

    async with serving(app, monkeypatch, Small) as found:
        yield found


async def ask(port: int, *parts: bytes, pause: float = 0.0) -> bytes:
    """Everything that the server sends until it ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        return await reader.read()
    writer.close()
    return b""


def _has_ended(reader: asyncio.StreamReader) -> bool:
    return reader.at_eof() or reader.exception() is not None


async def test_half_a_head_has_its_time(port: int) -> None:
    """Gains: a connection; 20,000 connections would block the service."""
    for given in (b"", HELLO[:20], HELLO[:-2], b"P"):
        assert b"408 Request Timeout" in await ask(port, given)


async def test_a_head_of_a_byte_now_and_then_has_no_more_time(port: int) -> None:
    """Gains: as before."""
    found = await ask(port, *(bytes([one]) for one in HELLO), pause=0.05)
    assert b"200 OK" not in found


async def test_half_a_second_head_has_its_time(port: int) -> None:
    """Gains: as before, by a request that is answered first."""
    found = await ask(port, HELLO, HELLO[:10], pause=0.1)
    assert found.count(b"200 OK") == 1


async def test_a_body_that_does_not_come_has_its_time(port: int) -> None:
    """Gains: as before, where a route takes a body from everybody."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"
    assert await ask(port, head, b"x") == b""
    assert await ask(port, head, *[b"x"] * 60, pause=0.05) == b""


async def test_a_body_that_comes_slowly_is_taken(port: int) -> None:
    body = b"x" * 40_000
    head = f"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    pieces = [body[start : start + 2000] for start in range(0, len(body), 2000)]
    assert b"200 OK" in await ask(port, head.encode(), *pieces, pause=0.1)


async def test_a_request_is_served_despite_idle_connections(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains: no other client can connect."""
    monkeypatch.setattr(lobby, "HEAD_S", 3600)
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4 * MOST)]
    for _, writer in held:
        writer.write(HELLO[:20])
    closing = HELLO.replace(b"Host: a\r\n", b"Host: a\r\nConnection: close\r\n")
    for _ in range(10):
        assert b"200 OK" in await ask(port, closing)
    # Those that were silent for the longest time have gone.
    gone = [reader for reader, _ in held[: 3 * MOST]]
    await until_async("the first ones have gone", lambda: all(map(_has_ended, gone)))
    assert not _has_ended(held[-1][0])
    for _, writer in held:
        writer.close()


async def test_many_new_connections_leave_turns_to_others(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains: answers to others wait 0.3 s, for turns of the event loop with thousands of connections."""
    monkeypatch.setattr(lobby, "HEAD_S", 3600)
    loop = asyncio.get_running_loop()
    accepted = [0]
    enter = Lobby.enter

    def entered(of: Lobby, one: lobby.Connection, most: int) -> None:
        accepted[-1] += 1
        enter(of, one, most)

    def next_turn() -> None:
        accepted.append(0)
        if sum(accepted) < len(held):
            loop.call_soon(next_turn)

    monkeypatch.setattr(Lobby, "enter", entered)
    # The event loop has no turn meanwhile: the system's queue holds them all.
    held = [socket.create_connection(("127.0.0.1", port), TIMEOUT_S) for _ in range(4 * MOST)]
    next_turn()
    await until_async("all have been accepted", lambda: sum(accepted) == len(held))
    assert max(accepted) <= ACCEPTED_PER_TURN
    for one in held:
        one.close()


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The server takes the next connection as if it came from the first of these addresses."""
    found: list[str] = []
    monkeypatch.setattr(
        lobby, "counted_address", lambda sock, trusted: found[0] if found else "other"
    )
    monkeypatch.setattr(HttpProtocol, "_most_of_address", lambda self: FEW)
    return found


async def test_one_address_cannot_end_the_connections_of_others(
    port: int, monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    """Gains: the connections of everybody else end, those of agents and people that wait for their next
    request."""
    monkeypatch.setattr(lobby, "HEAD_S", 3600)
    addresses[:] = ["victim"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HELLO)
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    addresses[:] = ["attacker"]
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4 * MOST)]
    for _, one in held:
        one.write(HELLO[:20])
    gone = [one for one, _ in held[:-FEW]]
    await until_async("the attacker's own have gone", lambda: all(map(_has_ended, gone)))
    assert not any(_has_ended(one) for one, _ in held[-FEW:])
    # The victim's, silent for the longest time, is still there, and the attacker is served as well.
    await reader.read(2)
    writer.write(HELLO)
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    closing = HELLO.replace(b"Host: a\r\n", b"Host: a\r\nConnection: close\r\n")
    assert b"200 OK" in await ask(port, closing)
    for one in (writer, *(one for _, one in held)):
        one.close()


class _Ends:
    """A socket with these two ends."""

    def __init__(self, peer: object, own: object) -> None:
        self._peer, self._own = peer, own

    def getpeername(self) -> object:
        return self._peer

    def getsockname(self) -> object:
        return self._own


@pytest.mark.parametrize(
    ("peer", "found"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        # One machine chooses freely in its network.
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("127.0.0.1", ""),
        ("::1", ""),
        # This machine by its other address, and a proxy with all people behind it.
        ("192.0.2.1", ""),
        ("203.0.113.9", ""),
    ],
)
def test_whose_connections_are_counted(peer: str, found: str) -> None:
    trusted = TrustedProxies(["203.0.113.0/24"])
    ends = cast("socket.socket", _Ends((peer, 5000), ("192.0.2.1", 8080)))
    assert lobby.counted_address(ends, trusted) == found
    assert lobby.counted_address(cast("socket.socket", _Ends("", "/run/socket")), trusted) == ""


async def test_one_address_cannot_take_all_connections_to_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gains: no other client reaches a task, by connections to the proxy without a login."""
    monkeypatch.setattr(server, "counted_address", lambda sock, trusted: "attacker")
    given, taken = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    service, questions = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=questions)
    proxy = server.Proxy(server.Sockets(taken), writer, {"connections": 2})
    asyncio.get_running_loop().add_reader(taken.fileno(), proxy.take)
    giving = server.Sockets(given)

    async def visit() -> socket.socket:
        mine, its = socket.socketpair()
        mine.setblocking(False)
        giving.give(its, b"GET /proxy/")
        return mine

    async def answer(one: socket.socket) -> bytes:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(one, 4096), TIMEOUT_S)

    held = [await visit(), await visit()]
    refused = await answer(await visit())
    assert refused.startswith(b"HTTP/1.1 503") and b"quotas.connections" in refused
    held[0].close()
    await until_async("its place is free", lambda: proxy._of_address["attacker"] == 1)
    held.append(await visit())
    await until_async("it is taken", lambda: proxy._of_address["attacker"] == 2)
    # An administrator may raise it while the proxy runs.
    proxy.answered(b'{"connections": 3}')
    held.append(await visit())
    await until_async("there is another place", lambda: proxy._of_address["attacker"] == 3)
    asyncio.get_running_loop().remove_reader(taken.fileno())
    for one in (*held[1:], given, taken, service):
        one.close()
    writer.close()


async def test_a_connection_that_is_kept_open_serves_again(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(HELLO)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        # Longer than a head has.
        await asyncio.sleep(1.5)
    writer.close()


def test_the_limit_of_descriptors_leaves_some_for_others() -> None:
    assert 0 < lobby.most_connections() <= lobby.MOST
