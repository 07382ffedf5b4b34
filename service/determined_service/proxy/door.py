"""Connections for tasks leave the service at its door: :class:`Door`, uvicorn's protocol with a look at the
first bytes of each request.

The whole connection goes to the proxy's process, which gives it back when its next request is the service's
own (a client, or a server before this one, may use a connection for both).
"""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from determined_service.proxy import process
from determined_service.proxy.http1 import HEAD_BYTES

_BEGIN = re.compile(rb"[A-Z]{1,10} /proxy/")
_MAY_BEGIN = re.compile(rb"[A-Z]{1,10}(?: (?:/(?:p(?:r(?:o(?:x(?:y)?)?)?)?)?)?)?")
_HOST = re.compile(rb"\r\nhost:[ \t]*([^\r\n:]*)", re.IGNORECASE)


def is_for_task(data: bytes, own_host: bytes) -> bool | None:
    """Whether a request that begins so is for a task; None: that cannot be seen yet.

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
        return found[1].strip().lower().endswith(b"." + own_host)
    return False if b"\r\n\r\n" in data or len(data) > HEAD_BYTES else None


class Door(H11Protocol):
    """A connection to the service, until it is one to a task."""

    _seen = b""

    def data_received(self, data: bytes) -> None:
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
        copy.setblocking(False)
        # Only this process' hold on the connection ends.
        self.transport.abort()
        proxy.give(copy, data)


def receive_back(
    config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]
) -> None:
    """From now on the service serves what the proxy gives back."""
    proxy = process.of(cast("Any", config.app))
    if proxy is None:
        return
    loop = asyncio.get_running_loop()

    def take(sock: socket.socket, data: bytes) -> None:
        sock.setblocking(False)
        door = Door(config, server_state, app_state)

        async def adopt() -> None:
            try:
                await loop.connect_accepted_socket(lambda: door, sock)
            except OSError:
                sock.close()
                return
            H11Protocol.data_received(door, data)

        works.add(task := loop.create_task(adopt()))
        task.add_done_callback(works.discard)

    works: set[asyncio.Task[None]] = set()
    proxy.take_back = take
