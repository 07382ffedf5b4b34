"""Each part of an answer is sent at once: else the second waits 40 ms until the first is acknowledged."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from determined_service.__main__ import GracefulServer
from tests.listening import listening


@pytest.mark.parametrize("own", [True, False], ids=["as the tests", "as the service"])
async def test_a_servers_data_is_sent_at_once(own: bool) -> None:
    app = FastAPI()
    server = GracefulServer(app, uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    given = [listening()] if own else None
    await server.startup(sockets=given)
    try:
        address = server.servers[0].sockets[0].getsockname()
        received, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await received.readline()
        (connection,) = server.server_state.connections
        transport: Any = connection.transport  # type: ignore[union-attr]
        accepted = transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
    finally:
        await server.shutdown(given)
