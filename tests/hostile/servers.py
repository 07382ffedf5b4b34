"""Servers that are attacked separately."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from determined_service.__main__ import GracefulServer
from determined_service.proxy.http_protocol import HttpProtocol
from tests.waiting import until_async


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp, monkeypatch: pytest.MonkeyPatch, protocol: type[HttpProtocol] = HttpProtocol
) -> AsyncIterator[int]:
    """The port of a server with the service's protocol."""
    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None)
    server = GracefulServer(cast("FastAPI", app), config)
    config.http = protocol
    with contextlib.ExitStack() as stack:
        # Signals are pytest's.
        monkeypatch.setattr(server, "capture_signals", lambda: stack)
        running = asyncio.ensure_future(server.serve())
        await until_async("the server", lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
        server.should_exit = True
        await running
