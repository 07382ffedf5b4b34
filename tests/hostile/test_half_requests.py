"""Connections of a client without a login that send less than a request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from determined_service.proxy import lobby
from determined_service.proxy.http_protocol import HttpProtocol
from determined_service.proxy.lobby import Lobby
from tests.hostile.servers import serving
from tests.waiting import until_async

HELLO = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
MOST = 50


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
    """All that comes back until the server ends the connection."""
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
    """Gains: a connection, and with 20,000 of them the service."""
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
    """Gains: nobody else gets in."""
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
