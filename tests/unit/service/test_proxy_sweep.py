"""The proxy looks at open connections again and again, or ends with all of them."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from determined_service.proxy import server
from determined_service.proxy.server import Proxy, Sockets
from determined_service.proxy.visitor import Visitor
from tests.waiting import TIMEOUT_S

SETTINGS = {"connections": 10}


async def test_a_connection_that_has_just_come_stops_no_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "SWEEP_S", 0.0)
    monkeypatch.setattr(server, "VISITS_S", 0.0)
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=theirs)
    proxy = Proxy(Sockets(ours), writer, SETTINGS)
    proxy._visitors[Visitor(proxy)] = "10.0.0.1"
    swept = asyncio.Event()
    monkeypatch.setattr(proxy, "_tell_visits", swept.set)
    sweeping = asyncio.create_task(proxy.sweep())
    seen = asyncio.create_task(swept.wait())
    await asyncio.wait({sweeping, seen}, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    assert not sweeping.done() and seen.done()
    sweeping.cancel()
    writer.close()
    ours.close()


async def test_without_its_sweep_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Proxy) -> None:
        raise RuntimeError("a fault of the sweep")

    monkeypatch.setattr(Proxy, "sweep", broken)
    asked, asking = socket.socketpair()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with asked, ours:
        asked.sendall(json.dumps(SETTINGS).encode() + b"\n")
        with pytest.raises(RuntimeError, match="a fault of the sweep"):
            async with asyncio.timeout(TIMEOUT_S):
                await server.serve(theirs.detach(), asking.detach())
