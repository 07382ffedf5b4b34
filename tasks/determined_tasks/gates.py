"""The gates before a task's ports, where the service is elsewhere (:mod:`determined.common.wire.gate`).

They are the only way from the network to servers that ask nobody for a password. Strangers may connect, so
those who have not shown who they are get no memory, little time, and push out nobody but each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import resource
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from determined.common.wire import gate
from determined.common.wire.legs import Port
from determined_tasks import ports

logger = logging.getLogger(__name__)

PROOF_S = 10.0
CONNECT_S = 5.0
MOST_STRANGERS = 128
"""Connections at a time, at one port, that have not shown yet that they are the proxy's."""
MOST_FILES = 16_384


class Gates:
    """Serves gates in a thread until :meth:`end`, or until this process ends.

    ``ports``: what the service is told; the numbers are the gates', at ``address``. ``inside``: where the
    task's servers listen.
    """

    def __init__(
        self,
        wanted: Sequence[Port],
        address: str,
        inside: str,
        token: str,
        allocation_id: str,
    ) -> None:
        self.ports: list[Port] = []
        self._gates: list[_Gate] = []
        self._held: list[socket.socket] = []
        for port in wanted:
            listener, held = _listener(address)
            self._held.extend(held)
            number = listener.getsockname()[1]
            self.ports.append(replace(port, port=number, behind=port.port, gate_key=""))
            key = bytes.fromhex(port.gate_key)
            if not key:  # the order is of the release before, and ``token`` the agents' own
                key = gate.key(token, allocation_id, port.name)
            self._gates.append(_Gate(listener, (inside, port.port), key))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted_files = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted_files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted_files, hard))
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        threading.Thread(target=self._run, name="gates", daemon=True).start()

    def end(self) -> None:
        """Returns without waiting."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._over.set)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()
            for one in self._held:
                one.close()

    async def _serve(self) -> None:
        servers = [
            await self._loop.create_server(one.stranger, sock=one.listener) for one in self._gates
        ]
        await self._over.wait()
        for server in servers:
            server.close()


def _listener(address: str) -> tuple[socket.socket, list[socket.socket]]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        number, held = ports.free_one()
        return socket.create_server((address, number), family=family, backlog=100), held
    except (ports.PortsError, OSError) as error:
        # The address may have changed, or the range be full.
        logger.warning("a gate gets any port and address of this machine: %s", error)
        return socket.create_server(("", 0), family=family, backlog=100), []


class _End(asyncio.Protocol):
    """One end of a connection; what comes there goes to the other."""

    other: _End | None = None
    has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def join(self, other: _End) -> None:
        self.other, other.other = other, self

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        self.has_ended = True
        if self.other is None or self.other.has_ended:
            return False
        with contextlib.suppress(OSError):
            self.other.transport.write_eof()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        other, self.other = self.other, None
        if other is None:
            return
        # Half an answer must not look like a whole one.
        if error is not None:
            other.transport.abort()
        else:
            other.transport.close()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()


class _Gate:
    """Before one port."""

    def __init__(self, listener: socket.socket, target: tuple[str, int], key: bytes) -> None:
        self.listener = listener
        self.target = target
        self.key = key
        # In the order in which they came.
        self.strangers: dict[_Stranger, None] = {}
        self.works: set[asyncio.Task[None]] = set()

    def stranger(self) -> _Stranger:
        return _Stranger(self)


class _Stranger(_End):
    """A client that has connected; it may be the proxy, and has to prove that."""

    def __init__(self, of: _Gate) -> None:
        self._gate = of
        self._nonce = os.urandom(gate.NONCE_BYTES)
        self._said = b""
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # Visitors of a machine that was cut off must not stay for ever.
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        strangers = self._gate.strangers
        if len(strangers) >= MOST_STRANGERS:
            next(iter(strangers)).transport.abort()
        strangers[self] = None
        self._late = asyncio.get_running_loop().call_later(PROOF_S, self.transport.abort)
        self.transport.write(gate.HELLO + self._nonce)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._said += data
        if len(self._said) < gate.PROOF_BYTES:
            return
        wanted = gate.proof(self._gate.key, self._nonce)
        if not hmac.compare_digest(self._said, wanted):
            self.transport.abort()
            return
        self._known()
        self.transport.pause_reading()
        work = asyncio.get_running_loop().create_task(self._open())
        self._gate.works.add(work)
        work.add_done_callback(self._gate.works.discard)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, server = await loop.create_connection(_End, *self._gate.target)
        except (OSError, TimeoutError):
            self.transport.abort()
            return
        if self.transport.is_closing():
            server.transport.abort()
            return
        self.join(server)
        self.transport.write(gate.OPEN)
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._known()
        super().connection_lost(error)

    def _known(self) -> None:
        """Stop counting it as a stranger: it has proved itself, or has gone."""
        self._gate.strangers.pop(self, None)
        if self._late is not None:
            self._late.cancel()
            self._late = None
