"""Gates before ports of tasks: the proxy passes, nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from determined.common.wire import gate
from determined.common.wire.legs import Port
from determined_service.proxy import gates as proxy
from determined_tasks import gates, gating
from tests.listening import listening
from tests.waiting import TIMEOUT_S

TOKEN, ALLOCATION = "of the agents", "1.a"
LOOPBACK = "127.0.0.1"


@pytest.fixture
def server() -> Iterator[tuple[int, list[bytes]]]:
    """The port of a server that returns its input in capitals, and all input that it got."""
    listener, got = listening(), list[bytes]()

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                data = b""
                while piece := sock.recv(1 << 16):
                    data += piece
                got.append(data)
                sock.sendall(data.upper())

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1], got
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def opened(server: tuple[int, list[bytes]]) -> Iterator[gates.Gates]:
    wanted = [Port("web", server[0], default=True)]
    made = gates.Gates(wanted, LOOPBACK, LOOPBACK, TOKEN, ALLOCATION)
    yield made
    made.end()


async def ask(port: int, key: bytes, data: bytes) -> bytes:
    async with asyncio.timeout(TIMEOUT_S):
        sock = await proxy.connect(LOOPBACK, port, key)
        reader, writer = await asyncio.open_connection(sock=sock)
        writer.write(data)
        writer.write_eof()
        found = await reader.read()
        writer.close()
        return found


def test_the_proxy_passes(opened: gates.Gates, server: tuple[int, list[bytes]]) -> None:
    (port,) = opened.ports
    assert (port.behind, port.default) == (server[0], True)
    assert port.port != server[0]
    data = b"a page of a task" * 100_000
    key = gate.key(TOKEN, ALLOCATION, "web")
    assert asyncio.run(ask(port.port, key, data)) == data.upper()


@pytest.mark.parametrize(
    ("token", "allocation", "name"),
    [("another", ALLOCATION, "web"), (TOKEN, "2.a", "web"), (TOKEN, ALLOCATION, "8265")],
)
def test_another_key_opens_nothing(
    opened: gates.Gates,
    server: tuple[int, list[bytes]],
    token: str,
    allocation: str,
    name: str,
) -> None:
    with pytest.raises(OSError):
        asyncio.run(ask(opened.ports[0].port, gate.key(token, allocation, name), b"let me in"))
    assert server[1] == []


def test_an_overheard_proof_opens_nothing(
    opened: gates.Gates, server: tuple[int, list[bytes]]
) -> None:
    key = gate.key(TOKEN, ALLOCATION, "web")
    proofs = []
    for _ in range(2):
        with socket.create_connection((LOOPBACK, opened.ports[0].port), TIMEOUT_S) as sock:
            said = sock.recv(1000)
            proofs.append(gate.proof(key, said[len(gate.HELLO) :]))
            sock.sendall(proofs[0])
            # The first one is let in: it is the proof for its own nonce.
            assert sock.recv(1) == (gate.OPEN if len(proofs) == 1 else b"")
    assert proofs[0] != proofs[1]


def test_data_after_a_proof_invalidates_it(
    opened: gates.Gates, server: tuple[int, list[bytes]]
) -> None:
    key = gate.key(TOKEN, ALLOCATION, "web")
    with socket.create_connection((LOOPBACK, opened.ports[0].port), TIMEOUT_S) as sock:
        said = sock.recv(1000)
        sock.sendall(gate.proof(key, said[len(gate.HELLO) :]) + b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    assert server[1] == []


def test_strangers_push_out_only_strangers(
    opened: gates.Gates,
    server: tuple[int, list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "MOST_STRANGERS", 3)
    (port,) = opened.ports
    key = gate.key(TOKEN, ALLOCATION, "web")

    async def run() -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            known = await proxy.connect(LOOPBACK, port.port, key)
            strangers = [await asyncio.open_connection(LOOPBACK, port.port) for _ in range(4)]
            # The oldest has gone, when its place was needed.
            hello = await strangers[0][0].read()
            assert hello.startswith(gate.HELLO)
            reader, writer = await asyncio.open_connection(sock=known)
            writer.write(b"still here")
            writer.write_eof()
            for _, stranger in strangers:
                stranger.close()
            return await reader.read()

    assert asyncio.run(run()) == b"STILL HERE"


def test_no_server_behind_the_gate() -> None:
    with listening() as found:
        free = found.getsockname()[1]
    made = gates.Gates([Port("web", free)], LOOPBACK, LOOPBACK, TOKEN, ALLOCATION)
    try:
        with pytest.raises(OSError, match="ended the connection"):
            asyncio.run(ask(made.ports[0].port, gate.key(TOKEN, ALLOCATION, "web"), b""))
    finally:
        made.end()


def test_the_service_on_this_machine_needs_no_gate() -> None:
    assert gating.gates_before([Port("web", 1)], LOOPBACK, LOOPBACK, TOKEN, ALLOCATION) is None
