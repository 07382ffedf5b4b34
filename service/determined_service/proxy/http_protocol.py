"""The service's side of its connections: :class:`HttpProtocol` looks at the first bytes of each request, and
hands connections for tasks over to the proxy.

The whole connection goes to the proxy's process, which gives it back when its next request is the service's
own (a client, or a server before this one, may use a connection for both).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import socket
import time
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from determined.common.cluster_config import Quotas
from determined_service.base import hosts
from determined_service.base.settings import Settings
from determined_service.base.trusted_proxies import TrustedProxies
from determined_service.proxy import lobby, names, process
from determined_service.proxy.http1 import HEAD_BYTES
from determined_service.proxy.lobby import Lobby

_PATHS = (names.PREFIX, names.TERMINALS)
_BEGIN = re.compile(rb"[A-Z]{1,10} (?:%b)" % b"|".join(map(re.escape, _PATHS)))
_PARTS = b"|".join(re.escape(path[:end]) for path in _PATHS for end in range(len(path)))
_MAY_BEGIN = re.compile(rb"[A-Z]{1,10}(?: (?:%b))?" % _PARTS)
_HOST = re.compile(rb"\r\nhost:[ \t]*([^\r\n:]*)", re.IGNORECASE)

_PAGES = tuple(label.encode() + b"." for label in hosts.PAGES)

_TOO_SLOW = (
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: text/plain\r\n\r\n"
    b"the request did not arrive in time\n"
)


def is_for_task(data: bytes, own_host: bytes) -> bool | None:
    """True if a request with this beginning is for a task; None: it is too short to tell. MLflow's and
    Prefect's pages are the service's own.

    ``own_host``: with a dot and this the host names of tasks end; empty: they have none.
    """
    if _BEGIN.match(data):
        return True
    if _MAY_BEGIN.fullmatch(data):
        return None
    if not own_host:
        return False
    found = _HOST.search(data, 0, HEAD_BYTES)
    if found is not None and found.end() < len(data):
        name = found[1].strip().lower()
        return name.endswith(b"." + own_host) and name not in (label + own_host for label in _PAGES)
    return False if b"\r\n\r\n" in data or len(data) > HEAD_BYTES else None


@functools.cache
def _believed(proxies: tuple[str, ...]) -> TrustedProxies:
    return TrustedProxies(proxies)


class HttpProtocol(H11Protocol):
    """Uvicorn's protocol for a connection to the service, until its next request is for a task."""

    lobby = Lobby()
    address = ""
    _seen = b""
    # The time for the head, or for the next bytes of the body; None: nothing has begun, and uvicorn's own
    # time for connections that are kept open counts.
    _ends_at: float | None = None
    _body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        raw = transport.get_extra_info("socket")
        _end_when_untaken(raw, lobby.UNTAKEN_S)
        self._ends_at = time.monotonic() + lobby.HEAD_S
        self.address = lobby.counted_address(raw, _believed(tuple(lobby.trusted_proxies())))
        self.lobby.enter(self, self._most_of_address())

    def _most_of_address(self) -> int:
        app = cast("Any", self.config.app)
        settings: Settings | None = getattr(app.state, "settings", None)
        return Quotas().connections if settings is None else settings.cluster.quotas.connections

    def connection_lost(self, exc: Exception | None) -> None:
        self.lobby.leave(self)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self.lobby.leave(self)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look(0)

    def refuse(self) -> None:
        if self.conn.our_state is h11.IDLE:
            self.transport.write(_TOO_SLOW)
        self.transport.close()

    def drop(self) -> None:
        self.transport.abort()

    def has_time(self, now: float) -> bool:
        if self._ends_at is None or now < self._ends_at:
            return True
        if self.conn.their_state is not h11.SEND_BODY:
            return False
        if self._body_bytes < lobby.BODY_BYTES and not self.flow.read_paused:
            return False
        self._ends_at, self._body_bytes = now + lobby.BODY_S, 0
        return True

    def data_received(self, data: bytes) -> None:
        self._receive(data)
        self._look(len(data))

    def _look(self, received: int) -> None:
        """Note if more of a request is awaited, after ``received`` more bytes of it."""
        theirs = self.conn.their_state
        if self.transport.is_closing():
            self.lobby.leave(self)
        elif theirs is h11.SEND_BODY:
            if self._body_bytes == 0:
                self._ends_at = time.monotonic() + lobby.BODY_S
            self._body_bytes += max(received, 1)
            self.lobby.awaits(self)
        elif theirs is h11.IDLE:
            has_begun = bool(self._seen or self.conn.trailing_data[0])
            if not has_begun:
                self._ends_at = None
            elif self._ends_at is None or self._body_bytes:
                self._ends_at = time.monotonic() + lobby.HEAD_S
            self._body_bytes = 0
            self.lobby.awaits(self)
        else:
            self._ends_at, self._body_bytes = None, 0
            self.lobby.serves(self)

    def take_over(self, data: bytes) -> None:
        """Serves a connection that was the proxy's, with the first bytes of its next request."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._look(len(data))

    def _receive(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            proxy = process.of(cast("Any", self.config.app))
            if proxy is not None:
                data = self._seen + data
                found = is_for_task(data, proxy.own_host.encode())
                self._seen = b""
                if found is None:
                    self._seen = data
                    return
                if found:
                    self._hand_over(proxy, data)
                    return
        super().data_received(data)

    def _hand_over(self, proxy: process.ProxyProcess, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self.transport.pause_reading()
        raw = self.transport.get_extra_info("socket")
        copy = raw.dup()
        # What a task and its client do with their connection is theirs.
        _end_when_untaken(copy, 0)
        copy.setblocking(False)
        self.lobby.leave(self)
        # Only this process' hold on the connection ends.
        self.transport.abort()
        proxy.give(copy, data)


def _end_when_untaken(connection: socket.socket, seconds: int) -> None:
    """Let the system end the connection when the other side does not take the data sent; 0: at the system's
    default."""
    with contextlib.suppress(OSError, AttributeError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)


def receive_back(
    config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]
) -> None:
    """Serve the connections that the proxy gives back."""
    proxy = process.of(cast("Any", config.app))
    if proxy is None:
        return
    loop = asyncio.get_running_loop()

    def take(sock: socket.socket, data: bytes) -> None:
        sock.setblocking(False)
        protocol = HttpProtocol(config, server_state, app_state)

        async def adopt() -> None:
            try:
                await loop.connect_accepted_socket(lambda: protocol, sock)
            except OSError:
                sock.close()
                return
            protocol.take_over(data)

        works.add(task := loop.create_task(adopt()))
        task.add_done_callback(works.discard)

    works: set[asyncio.Task[None]] = set()
    proxy.take_back = take
