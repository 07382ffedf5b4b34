"""``python -m benchmarks.tasks.proxy``: the proxy beside a direct connection, in one run.

A task's server, the load and the service with its proxy run on this machine, each in a process of its own:
they share its cores. Direct and proxied take turns; medians of the rounds. Nothing is asserted.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import sqlalchemy as sa

from benchmarks.database import postgres
from determined_registry.database.tables import allocation_ports, allocations, tasks, users
from determined_service.access.sessions import open_session
from determined_service.base.db import Database

CONNECTIONS, SECONDS, ROUNDS = 64, 2.0, 5
WEBSOCKETS = 1000
BODY = b"x" * 1024
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n" + BODY
TASK = "1.bench"


class Answers(asyncio.Protocol):
    """The fastest server that Python's own loop makes; after an upgrade it says nothing more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if b"websocket" in data:
            import base64
            import hashlib

            key = data.lower().partition(b"sec-websocket-key: ")[0]
            start = len(key) + len(b"sec-websocket-key: ")
            nonce = data[start:].partition(b"\r\n")[0] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(nonce).digest())
            self.transport.write(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
            )
        elif data.endswith(b"\r\n\r\n"):
            self.transport.write(ANSWER)


def serve_raw(port: Any) -> None:
    """The server, in a process of its own."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            Answers, "127.0.0.1", 0, backlog=2000
        )
        port.value = server.sockets[0].getsockname()[1]
        await server.serve_forever()

    asyncio.run(run())


async def _app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        headers = [(b"content-length", b"1024")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": BODY})


def serve_uvicorn(port: Any) -> None:
    """A server as tasks have them: uvicorn with an application of two lines."""
    import socket

    import uvicorn

    # The socket must say that it is TCP: else asyncio leaves Nagle's algorithm on, which waits 40 ms.
    sock = socket.socket(proto=socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    sock.listen(2000)
    port.value = sock.getsockname()[1]
    config = uvicorn.Config(_app, log_level="error", lifespan="off", access_log=False)
    uvicorn.Server(config).run(sockets=[sock])


async def load(port: int, request: bytes, connections: int, seconds: float) -> list[float]:
    """The seconds of each request, each connection asking again once it has its answer."""
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            await reader.readexactly(len(BODY))
            took.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return took


def cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="det-bench-proxy-") as name, postgres() as url:
        _measure(url, Path(name))


def _measure(db_url: str, folder: Path) -> None:
    port = _free_port()
    settings = {"db_url": db_url, "agent_token": "bench", "port": port, "data_dir": str(folder)}
    path = folder / "service.json"
    path.write_bytes(orjson.dumps(settings))
    service = subprocess.Popen(
        [sys.executable, "-m", "determined_service"],
        env={**os.environ, "DET_SERVICE_CONFIG": str(path)},
        stderr=subprocess.DEVNULL,
    )
    try:
        base = f"http://127.0.0.1:{port}"
        _wait(f"{base}/health")
        for label, target in (("uvicorn", serve_uvicorn), ("raw asyncio", serve_raw)):
            number = multiprocessing.Value("i", 0)
            task = multiprocessing.Process(target=target, args=(number,), daemon=True)
            task.start()
            while not number.value:
                time.sleep(0.01)
            token = asyncio.run(_register(db_url, number.value))
            asyncio.run(_compare(label, service.pid, port, number.value, token))
            if label != "uvicorn":
                asyncio.run(_websockets(service.pid, port, token))
            task.terminate()
            task.join()
    finally:
        service.terminate()
        service.wait()


async def _register(db_url: str, port: int) -> str:
    """A running task of the user ``determined`` with this port; a token of that user."""
    db = Database(db_url)
    try:
        async with db.tx() as conn:
            owner = (
                await conn.execute(sa.select(users.c.id).where(users.c.username == "determined"))
            ).scalar_one()
            await conn.execute(sa.delete(tasks).where(tasks.c.id == TASK))
            await conn.execute(
                sa.insert(tasks).values(id=TASK, kind="BENCH", owner_id=owner, state="ACTIVE")
            )
            await conn.execute(
                sa.insert(allocations).values(
                    id=f"{TASK}.1", task_id=TASK, state="RUNNING", resource_pool="default", slots=0
                )
            )
            await conn.execute(
                sa.insert(allocation_ports).values(
                    allocation_id=f"{TASK}.1",
                    name="http",
                    task_id=TASK,
                    address="127.0.0.1",
                    port=port,
                    tcp=False,
                    unauthenticated=False,
                    shared=False,
                    is_default=True,
                    keep_prefix=False,
                    ready=True,
                )
            )
            return await open_session(conn, owner, 10)
    finally:
        await db.close()


async def _compare(label: str, service: int, port: int, direct: int, token: str) -> None:
    login = f"Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
    sides = {
        "direct": (direct, f"GET / HTTP/1.1\r\n{login}".encode()),
        "proxied": (port, f"GET /proxy/{TASK}/ HTTP/1.1\r\n{login}".encode()),
    }
    rates: dict[str, list[float]] = {side: [] for side in sides}
    alone: dict[str, list[float]] = {side: [] for side in sides}
    costs: list[float] = []
    for turn in range(ROUNDS + 1):
        for side, (where, request) in sides.items():
            proxy = _proxy_of(service)
            spent = cpu(proxy) if proxy else 0.0
            took = await load(where, request, CONNECTIONS, SECONDS if turn else 0.5)
            proxy = _proxy_of(service)
            if not turn:
                continue
            rates[side].append(len(took) / SECONDS)
            if side == "proxied" and proxy:
                costs.append((cpu(proxy) - spent) / len(took) * 1e6)
            alone[side].append(statistics.median(await load(where, request, 1, 1.0)) * 1000)
    ratio = [p / d for p, d in zip(rates["proxied"], rates["direct"], strict=True)]
    more = [p - d for p, d in zip(alone["proxied"], alone["direct"], strict=True)]
    print(
        f"{label}: direct {statistics.median(rates['direct']):,.0f}/s, proxied"
        f" {statistics.median(rates['proxied']):,.0f}/s, ratio {statistics.median(ratio):.2f}"
        f" ({min(ratio):.2f} to {max(ratio):.2f}); one connection: {statistics.median(alone['direct']):.3f}"
        f" ms, {statistics.median(alone['proxied']):.3f} ms, {statistics.median(more):+.3f} ms; proxy's CPU"
        f" {statistics.median(costs):.0f} us a request",
        flush=True,
    )


async def _websockets(service: int, port: int, token: str) -> None:
    proxy = _proxy_of(service)
    assert proxy is not None
    before = [psutil.Process(pid).memory_info().rss for pid in (proxy, service)]
    request = (
        f"GET /proxy/{TASK}/ HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()

    async def one() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        return writer

    began = time.perf_counter()
    opened: list[asyncio.StreamWriter] = []
    for _ in range(WEBSOCKETS // 50):
        opened += await asyncio.gather(*(one() for _ in range(50)))
    seconds = time.perf_counter() - began
    await asyncio.sleep(1)
    after = [psutil.Process(pid).memory_info().rss for pid in (proxy, service)]
    more = [(a - b) / 1e6 for a, b in zip(after, before, strict=True)]
    spent = cpu(proxy), cpu(service)
    await asyncio.sleep(10)
    idle = cpu(proxy) - spent[0], cpu(service) - spent[1]
    print(
        f"{WEBSOCKETS} websockets: opened in {seconds:.1f} s; proxy {before[0] / 1e6:.0f} MB +"
        f" {more[0]:.0f} MB, service + {more[1]:.0f} MB; 10 s of silence cost {idle[0]:.2f} s and"
        f" {idle[1]:.2f} s of a processor",
        flush=True,
    )
    for writer in opened:
        writer.close()


def _proxy_of(service: int) -> int | None:
    for child in psutil.Process(service).children():
        if "determined_service.proxy.server" in child.cmdline():
            return child.pid
    return None


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _wait(url: str) -> None:
    while True:
        try:
            if httpx.get(url, timeout=5).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
