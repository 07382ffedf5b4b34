"""The service is killed while people sit at tasks: their programs go on, they are let in again as before."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy as sa
import websockets
from fastapi import FastAPI

from determined_registry.database.tables import task_visits
from determined_service.base.db import Database
from determined_service.base.settings import Settings
from tests.integration.conftest import AGENT_TOKEN, Template
from tests.integration.service_api.test_proxy import Proxied
from tests.integration.service_api.world import World
from tests.listening import listening
from tests.waiting import TIMEOUT_S, until_async


@dataclass
class Service:
    """The service as a separate process, always at the same port."""

    url: str
    environment: dict[str, str]
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "determined_service"), env=self.environment
        )

        async def answers() -> bool:
            assert process.returncode is None
            with suppress(httpx.TransportError):
                async with httpx.AsyncClient(base_url=self.url) as client:
                    return (await client.get("/health")).status_code == 200
            return False

        await until_async("the service", answers)

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@pytest.fixture
async def service(settings: Settings, tmp_path: Path) -> AsyncIterator[Service]:
    with listening() as found:
        port = found.getsockname()[1]
    given = settings.model_copy(update={"port": port})
    path = tmp_path / "service.json"
    content = given.model_dump(mode="json", exclude_defaults=True)
    path.write_text(json.dumps({**content, "agent_token": AGENT_TOKEN}))
    made = Service(f"http://127.0.0.1:{port}", {**os.environ, "DET_SERVICE_CONFIG": str(path)})
    yield made
    await made.kill()


@asynccontextmanager
async def notebook() -> AsyncIterator[tuple[int, int]]:
    """A task's server that remembers its requests, and a port that echoes."""
    memory: dict[str, str] = {}

    async def talk(socket: Any) -> None:
        async for message in socket:
            name, equals, value = str(message).partition("=")
            if equals:
                memory[name] = value
            await socket.send(memory[name])

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data.upper())
        writer.close()

    echoes = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with websockets.serve(talk, "127.0.0.1", 0) as server, echoes:
        yield (
            next(iter(server.sockets)).getsockname()[1],
            echoes.sockets[0].getsockname()[1],
        )
        echoes.close()


async def test_the_service_is_killed_while_tasks_are_open(
    service: Service, settings: Settings, template: Template
) -> None:
    db = Database(settings.db_url)
    stand_in = cast("FastAPI", SimpleNamespace(state=SimpleNamespace(db=db)))
    url, programs = service.url, []
    try:
        await service.start()
        proxied = Proxied(url, stand_in, World(stand_in), template.token)
        async with notebook() as (page, echo), httpx.AsyncClient(base_url=url) as client:
            leg = await proxied.task(page)
            shell = await proxied.task(echo, tcp=True)
            made = await client.post(
                f"/api/v1/tasks/{leg.task_id}/visits", json={}, headers=proxied.headers
            )
            way_in = urlsplit(made.json()["url"])
            entered = await client.get(
                f"{way_in.path}?{way_in.query}", headers={"Host": way_in.netloc}
            )
            login = {"Cookie": entered.headers["set-cookie"].partition(";")[0]}

            def visit() -> Any:
                # This machine's resolver may not know names below localhost.
                return websockets.connect(
                    f"ws://{way_in.netloc}/",
                    host="127.0.0.1",
                    additional_headers=login,
                    origin=cast("Any", f"http://{way_in.netloc}"),
                )

            listens = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "determined.cli.tunnel", url, f"{shell.task_id}:8265"),
                *("--listen", "0"),
                env={**os.environ, "DET_USER_TOKEN": proxied.token},
                stderr=-1,
            )
            programs.append(listens)
            assert listens.stderr is not None
            said = await asyncio.wait_for(listens.stderr.readline(), TIMEOUT_S)
            port = int(said.split()[1])

            async def through() -> bytes:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(b"ssh")
                    return await asyncio.wait_for(reader.read(100), TIMEOUT_S)
                finally:
                    writer.close()

            async with visit() as visitor:
                await visitor.send("x=41")
                assert await visitor.recv() == "41"
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"abc")
                assert await reader.read(100) == b"ABC"
                await service.kill()
                with pytest.raises(websockets.ConnectionClosed):
                    await asyncio.wait_for(visitor.recv(), TIMEOUT_S)
            # A whole answer would have ended in another way.
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(100), TIMEOUT_S)
            writer.close()
            with pytest.raises(ConnectionResetError):
                await through()
            said = await asyncio.wait_for(listens.stderr.readline(), TIMEOUT_S)
            assert b"no answer from the service" in said

            await service.start()
            async with visit() as visitor:
                await visitor.send("x")
                assert await visitor.recv() == "41"
            assert await through() == b"SSH"
            # Logins at tasks that ended long ago go when the next one is made.
            async with db.tx() as conn:
                await conn.execute(sa.text("UPDATE tasks SET end_time = now() - interval '2 days'"))
            visits = f"/api/v1/tasks/{shell.task_id}/visits"
            await client.post(visits, json={}, headers=proxied.headers)
            (left,) = await proxied.world.rows(sa.select(task_visits.c.task_id))
            assert left.task_id == shell.task_id
    finally:
        for program in programs:
            program.kill()
            await program.wait()
        await db.close()
