"""The proxy's process: `python -m determined_service.proxy.server`, started by the service.

It gets connections from the service, by a socket that carries descriptors, and asks it over another one who
may go where. It ends with the service, however that ends: the kernel closes that socket.

    first descriptor   datagrams: ``C`` and the bytes that were read, with a descriptor; ``D``: more of the
                       last one's. Both ways.
    second descriptor  lines of JSON: settings, then questions and answers, and the connections that one
                       address may have, whenever that number changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import socket
import sys
import time
from collections import Counter, deque
from dataclasses import asdict
from typing import Any, TypeVar

from determined_service.base.trusted_proxies import TrustedProxies
from determined_service.proxy.answers import Refusal, refuse
from determined_service.proxy.arrivals import OwnAddresses
from determined_service.proxy.lobby import counted_address
from determined_service.proxy.names import Key
from determined_service.proxy.questions import Ask, Route
from determined_service.proxy.task_connection import TaskConnection
from determined_service.proxy.visitor import Visitor
from determined_service.proxy.visitor_stream import IDLE_S

logger = logging.getLogger("determined.proxy")

PIECE = 48 << 10
"""Bytes of one datagram: less than every system's limit."""
REMEMBER_S = 1.0
CHECK_S = 5.0
"""Seconds between checks of the rights of open connections."""
SWEEP_S = 1.0
VISITS_S = 5.0
"""So often the service is told which tasks have visitors."""
ASKING = 256
"""Questions that the service has not answered yet; more visitors get 503."""
PER_TASK = 2048
PER_USER = 4096
KEPT = 64
"""Connections to one port that wait for the next request."""
ANSWER_S = 30.0


class Sockets:
    """Passes connections to the other process. ``sock``: of datagrams, which are never lost nor cut."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(False)
        self._waiting: deque[tuple[bytes, socket.socket | None]] = deque()
        self._coming: tuple[int, int, bytearray] | None = None

    def give(self, sock: socket.socket, data: bytes) -> None:
        """Send ``sock`` and the data read from it; ``sock`` is closed here once the other process has it."""
        first = b"C" + len(data).to_bytes(4) + data[:PIECE]
        self._waiting.append((first, sock))
        for at in range(PIECE, len(data), PIECE):
            self._waiting.append((b"D" + data[at : at + PIECE], None))
        self.flush()

    def flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            piece, sock = self._waiting[0]
            try:
                if sock is None:
                    self._sock.send(piece)
                else:
                    socket.send_fds(self._sock, [piece], [sock.fileno()])
            except (BlockingIOError, InterruptedError):
                loop.add_writer(self._sock.fileno(), self.flush)
                return
            except OSError:
                self.close()
                return
            self._waiting.popleft()
            if sock is not None:
                sock.close()
        loop.remove_writer(self._sock.fileno())

    def take(self) -> list[tuple[socket.socket, bytes]]:
        """The connections that have arrived, each with the data read from it."""
        found = []
        for _ in range(64):
            try:
                piece, fds, _, _ = socket.recv_fds(self._sock, PIECE + 16, 1)
            except (BlockingIOError, InterruptedError, ConnectionError):
                break
            if not piece:
                break
            if piece[:1] == b"C" and fds:
                self._coming = (fds[0], int.from_bytes(piece[1:5]), bytearray(piece[5:]))
            elif self._coming is not None:
                self._coming[2].extend(piece[1:])
            if self._coming is not None and len(self._coming[2]) >= self._coming[1]:
                fd, _, data = self._coming
                self._coming = None
                found.append((socket.socket(fileno=fd), bytes(data)))
        return found

    def close(self) -> None:
        for _, sock in self._waiting:
            if sock is not None:
                sock.close()
        self._waiting.clear()
        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._sock.fileno())
            loop.remove_writer(self._sock.fileno())
        self._sock.close()


K = TypeVar("K")


def _less(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class Proxy:
    """Implements :class:`~.visitor.ProxyState` in the proxy's process."""

    def __init__(
        self, sockets: Sockets, writer: asyncio.StreamWriter, settings: dict[str, Any]
    ) -> None:
        self._sockets = sockets
        self._writer = writer
        self.own = OwnAddresses(
            settings.get("own_host", ""),
            settings.get("own_base", ""),
            TrustedProxies(settings.get("trusted", ())),
        )
        self.most_of_address: int = settings["connections"]
        self._visitors: dict[Visitor, str] = {}
        self._of_address: Counter[str] = Counter()
        self._with_route: dict[Visitor, Route] = {}
        self._of_task: Counter[str] = Counter()
        self._of_user: Counter[int] = Counter()
        self._idle: dict[tuple[str, int], list[TaskConnection]] = {}
        self._known: dict[Ask, tuple[float, Route | Refusal]] = {}
        self._deciding: dict[Ask, asyncio.Future[Route | Refusal]] = {}
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self._visited: set[str] = set()
        self._told = time.monotonic()
        self._works: set[asyncio.Task[None]] = set()

    # connections

    def take(self) -> None:
        for sock, data in self._sockets.take():
            self._begin(self._adopt(sock, data))

    async def _adopt(self, sock: socket.socket, data: bytes) -> None:
        visitor = Visitor(self, data)
        sock.setblocking(False)
        address = counted_address(sock, self.own.trusted)
        most = self.most_of_address
        if address and self._of_address[address] >= most:
            text = (
                f"your address has {most} connections to tasks, which is the most (quotas.connections of the "
                "cluster configuration): close some, or ask an administrator, who may raise it"
            )
            with contextlib.suppress(OSError):
                sock.send(refuse(Refusal(503, text, again=True), None, False))
            sock.close()
            return
        self._visitors[visitor] = address
        self._of_address[address] += 1
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: visitor, sock)
        except OSError:
            self._forget(visitor)
            sock.close()

    def _forget(self, visitor: Visitor) -> None:
        address = self._visitors.pop(visitor, None)
        if address is not None:
            _less(self._of_address, address)

    def give_back(self, visitor: Visitor, data: bytes) -> bool:
        """The service gets the connection, whose next request is its own."""
        transport = visitor.transport
        # What was written must be gone: the bytes of both would be mixed.
        if transport.get_write_buffer_size() or transport.is_closing():
            return False
        transport.pause_reading()
        raw = transport.get_extra_info("socket")
        copy = socket.socket(fileno=os.dup(raw.fileno()))
        self._sockets.give(copy, data)
        transport.abort()
        return True

    def admit(self, visitor: Visitor, route: Route) -> Refusal | None:
        if self._of_task[route.allocation_id] >= PER_TASK:
            return Refusal(
                503, f"the task has {PER_TASK} connections, which is the most", again=True
            )
        if route.user_id and self._of_user[route.user_id] >= PER_USER:
            return Refusal(503, f"you have {PER_USER} connections, which is the most", again=True)
        self._with_route[visitor] = route
        if visitor.ask is not None:
            self._visited.add(visitor.ask.key.task_id)
        self._of_task[route.allocation_id] += 1
        self._of_user[route.user_id] += 1
        return None

    def leave(self, visitor: Visitor) -> None:
        route = self._with_route.pop(visitor, None)
        if route is not None:
            _less(self._of_task, route.allocation_id)
            _less(self._of_user, route.user_id)
        if visitor.transport.is_closing():
            self._forget(visitor)

    def idle(self, route: Route) -> TaskConnection | None:
        kept = self._idle.get((route.address, route.port))
        while kept:
            task = kept.pop()
            if not task.transport.is_closing():
                return task
        return None

    def keep(self, task: TaskConnection) -> None:
        kept = self._idle.setdefault(task.key, [])
        if len(kept) >= KEPT:
            task.transport.abort()
            return
        task.since = time.monotonic()
        kept.append(task)

    # questions

    def known(self, ask: Ask) -> Route | Refusal | None:
        found = self._known.get(ask)
        if found is not None and time.monotonic() < found[0]:
            return found[1]
        return None

    async def decide(self, ask: Ask) -> Route | Refusal:
        """As the service says; one question for all who ask the same at once."""
        waiting = self._deciding.get(ask)
        if waiting is not None:
            return await asyncio.shield(waiting)
        if len(self._deciding) >= ASKING:
            return Refusal(503, "too many visitors come at once", again=True)
        future = asyncio.get_running_loop().create_future()
        self._deciding[ask] = future
        decided: Route | Refusal = Refusal(503, "the service does not answer", again=True)
        try:
            given = await self._question(
                {
                    "ask": "route",
                    "task": ask.key.task_id,
                    "port": ask.key.port,
                    "bearer": ask.bearer,
                    "cookies": list(ask.cookies),
                }
            )
            decided = _decided(given)
            if len(self._known) > 20_000:
                self._known.clear()
            self._known[ask] = (time.monotonic() + REMEMBER_S, decided)
        except TimeoutError:
            pass
        finally:
            del self._deciding[ask]
            future.set_result(decided)
        return decided

    async def enter(self, key: Key, ticket: str, login: str | None) -> str | Refusal:
        """The cookie for a ticket. ``login``: see :meth:`.decisions.Decisions.enter`."""
        question = {"ask": "enter", "task": key.task_id, "port": key.port}
        try:
            given = await self._question(question | {"ticket": ticket, "login": login})
        except TimeoutError:
            return Refusal(503, "the service does not answer", again=True)
        return str(given["cookie"]) if "cookie" in given else Refusal(**given["refusal"])

    async def _question(self, question: dict[str, Any]) -> dict[str, Any]:
        """Raises TimeoutError."""
        self._number += 1
        number = self._number
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({"id": number, **question}).encode() + b"\n")
        try:
            return await asyncio.wait_for(future, ANSWER_S)
        finally:
            del self._asked[number]

    def answered(self, line: bytes) -> None:
        given = json.loads(line)
        if "connections" in given:
            self.most_of_address = given["connections"]
            return
        future = self._asked.get(given["id"])
        if future is not None and not future.done():
            future.set_result(given)

    # repeated checks

    async def sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            for kept in list(self._idle.values()):
                for task in [one for one in kept if now - one.since > IDLE_S / 2]:
                    kept.remove(task)
                    task.transport.abort()
            self._idle = {key: kept for key, kept in self._idle.items() if kept}
            again: dict[Ask, list[Visitor]] = {}
            for visitor in list(self._visitors):
                if not visitor.transport:
                    # It has just come, and the event loop has not taken it over.
                    continue
                if visitor.transport.is_closing():
                    if visitor.transport.get_write_buffer_size() == 0 or visitor.is_late(now):
                        self._forget(visitor)
                elif visitor.is_late(now):
                    visitor.transport.abort()
                elif (
                    visitor.ask is not None
                    and visitor in self._with_route
                    and now - visitor.checked > CHECK_S
                ):
                    visitor.checked = now
                    again.setdefault(visitor.ask, []).append(visitor)
            for ask, visitors in again.items():
                self._begin(self._check(ask, visitors))
            if now - self._told > VISITS_S:
                self._told = now
                self._tell_visits()

    def _tell_visits(self) -> None:
        """Report the tasks that had a visitor since the last time: they are not idle."""
        visited, self._visited = self._visited, set()
        visited.update(one.ask.key.task_id for one in self._with_route if one.ask is not None)
        names = sorted(visited)
        for at in range(0, len(names), 1000):
            told = {"visited": names[at : at + 1000]}
            self._writer.write(json.dumps(told).encode() + b"\n")

    async def _check(self, ask: Ask, visitors: list[Visitor]) -> None:
        """End the connections of visitors who have lost their rights."""
        decided = self.known(ask) or await self.decide(ask)
        for visitor in visitors:
            route = self._with_route.get(visitor)
            if route is None:
                continue
            if isinstance(decided, Refusal):
                # A service that is away, or too busy, says nothing about rights.
                if decided.status != 503:
                    visitor.transport.abort()
            elif route.allocation_id != decided.allocation_id:
                visitor.transport.abort()

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)


def _decided(given: dict[str, Any]) -> Route | Refusal:
    return Route(**given["route"]) if "route" in given else Refusal(**given["refusal"])


async def serve(sockets_fd: int, questions_fd: int) -> None:
    reader, writer = await asyncio.open_connection(
        sock=socket.socket(fileno=questions_fd), limit=1 << 20
    )
    settings = json.loads(await reader.readline())
    sock = socket.socket(fileno=sockets_fd)
    proxy = Proxy(Sockets(sock), writer, settings)
    loop = asyncio.get_running_loop()
    loop.add_reader(sock.fileno(), proxy.take)
    writer.write(b'{"ready": true}\n')
    # Without either of them connections would outlive the rights of their visitors: all end.
    works = (loop.create_task(proxy.sweep()), loop.create_task(_hear(proxy, reader)))
    ended, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
    for work in works:
        work.cancel()
    for work in ended:
        work.result()


async def _hear(proxy: Proxy, reader: asyncio.StreamReader) -> None:
    """Takes the service's answers until the service is gone."""
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            proxy.answered(line)


def main() -> None:
    """Serves until the service is gone."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    gc.set_threshold(10_000, 20, 20)
    gc.freeze()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(*map(int, sys.argv[1:3])))
    sys.exit(0)


def route_json(route: Route) -> dict[str, Any]:
    """For the answer to a question."""
    return {"route": asdict(route)}


if __name__ == "__main__":
    main()
