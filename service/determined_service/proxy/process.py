"""The proxy's process, as the service sees it: started by the first connection for a task, and by the next
one when it has ended; told nothing but who may go where.

It holds no secret of the cluster's, and what it does holds up no other request: bytes of tasks never pass the
service's own event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI

from determined_service.base.pages import task_base, task_host
from determined_service.base.settings import Settings
from determined_service.proxy.answers import Refusal, refuse
from determined_service.proxy.decisions import Decisions
from determined_service.proxy.lobby import trusted_proxies
from determined_service.proxy.names import Key
from determined_service.proxy.server import Sockets, route_json

logger = logging.getLogger(__name__)

START_S = 20.0
AT_ONCE = 32
"""Questions that are looked up at the same time."""
AGAIN_S = 0.5
"""Between two starts, when it has ended at once."""


class ProxyProcess:
    """One process at most, of one service process. ``take_back``: for a connection that is the service's
    again."""

    def __init__(self, settings: Settings, decisions: Decisions) -> None:
        self._settings = settings
        self._decisions = decisions
        self._process: asyncio.subprocess.Process | None = None
        self._sockets: Sockets | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._most_told = 0
        self._starting: asyncio.Task[None] | None = None
        self._waiting: list[tuple[socket.socket, bytes]] = []
        self._works: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(AT_ONCE)
        self._closed = False
        self.take_back: Callable[[socket.socket, bytes], Any] = _drop
        self.own_host = task_host(settings)

    @property
    def pid(self) -> int | None:
        """The process' id while it runs."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    def give(self, sock: socket.socket, data: bytes) -> None:
        """Hand over a connection whose next request is for a task, with the data read from it."""
        if self._sockets is not None and self.pid is not None:
            self._tell_most()
            self._sockets.give(sock, data)
            return
        self._waiting.append((sock, data))
        if self._starting is None and not self._closed:
            self._starting = self._begin(self._start())

    async def close(self) -> None:
        """Ends the process."""
        self._closed = True
        for work in list(self._works):
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        await self._stop()

    async def _start(self) -> None:
        try:
            await self._try_to_start()
        except (OSError, TimeoutError, EOFError) as error:
            logger.error("the proxy's process did not start: %s", error or type(error).__name__)
            answer = refuse(Refusal(503, "the proxy did not start", again=True), None, False)
            for sock, _ in self._waiting:
                with contextlib.suppress(OSError):
                    sock.send(answer)
                sock.close()
            self._waiting.clear()
            await self._stop()
        finally:
            self._starting = None

    async def _try_to_start(self) -> None:
        await self._stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        asked, asking = socket.socketpair()
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DET_", "PREFECT_"))
        }
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "determined_service.proxy.server",
                str(theirs.fileno()),
                str(asking.fileno()),
                pass_fds=(theirs.fileno(), asking.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        finally:
            theirs.close()
            asking.close()
        reader, writer = await asyncio.open_connection(sock=asked, limit=1 << 20)
        settings = {
            "own_host": self.own_host,
            "own_base": task_base(self._settings),
            "trusted": trusted_proxies(),
            "connections": self._settings.cluster.quotas.connections,
        }
        writer.write(json.dumps(settings).encode() + b"\n")
        self._writer, self._most_told = writer, self._settings.cluster.quotas.connections
        if not await asyncio.wait_for(reader.readline(), START_S):
            raise EOFError("it ended at once")
        self._sockets = Sockets(ours)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._taken)
        waiting, self._waiting = self._waiting, []
        for sock, data in waiting:
            self._sockets.give(sock, data)
        self._begin(self._answer(reader, writer))

    def _tell_most(self) -> None:
        """The connections of one address, which an administrator may have changed."""
        most = self._settings.cluster.quotas.connections
        if self._writer is not None and most != self._most_told:
            self._most_told = most
            self._writer.write(json.dumps({"connections": most}).encode() + b"\n")

    def _taken(self) -> None:
        if self._sockets is not None:
            for sock, data in self._sockets.take():
                self.take_back(sock, data)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the process ends."""
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                await self._places.acquire()
                asked = json.loads(line)
                if "visited" in asked:
                    work = self._begin(self._note_visits(asked["visited"]))
                else:
                    work = self._begin(self._answer_one(asked, writer))
                work.add_done_callback(lambda _: self._places.release())
        writer.close()
        await self._stop()
        if not self._closed:
            logger.warning("the proxy's process has ended: the next visitor starts another")
            await asyncio.sleep(AGAIN_S)

    async def _note_visits(self, task_ids: list[str]) -> None:
        try:
            await self._decisions.note_visits(task_ids)
        except Exception:
            # They are told again while they last.
            logger.exception("visits of tasks are not noted")

    async def _answer_one(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        answer: dict[str, Any]
        try:
            key = Key(asked["task"], asked["port"])
            if asked["ask"] == "enter":
                entered = await self._decisions.enter(key, asked["ticket"], asked["login"])
                answer = {"cookie": entered} if isinstance(entered, str) else _refusal(entered)
            else:
                found = await self._decisions.route(key, asked["bearer"], asked["cookies"])
                answer = _refusal(found) if isinstance(found, Refusal) else route_json(found)
        except Exception:
            logger.exception("the proxy's question %s cannot be answered", asked.get("ask"))
            answer = _refusal(Refusal(503, "the service cannot say now who may visit", again=True))
        with contextlib.suppress(ConnectionError):
            writer.write(json.dumps({"id": asked["id"], **answer}).encode() + b"\n")

    async def _stop(self) -> None:
        process, self._process = self._process, None
        sockets, self._sockets, self._writer = self._sockets, None, None
        if sockets is not None:
            sockets.close()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _begin(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        return task


def _refusal(refusal: Refusal) -> dict[str, Any]:
    return {"refusal": asdict(refusal)}


def _drop(sock: socket.socket, data: bytes) -> None:
    sock.close()


def of(app: FastAPI) -> ProxyProcess | None:
    """The app's, once it has started."""
    found: ProxyProcess | None = getattr(app.state, "proxy", None)
    return found
