"""Through the gate before a task's port on another machine (:mod:`determined.common.wire.gate`)."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from determined.common.wire import gate

CUT_S = 10
"""Seconds that a request waits for a machine that does not confirm its receipt; then it is sent again."""
TALK_CUT_S = 60
"""The same for a websocket or a tunnel."""


class Refused(ConnectionError):
    """The gate was reached, and ended the connection: the task's server is not there, say."""


def notice_cuts(transport: asyncio.BaseTransport, seconds: int) -> None:
    """Ends the connection when its other side has confirmed nothing for so long, also while nobody talks."""
    sock = transport.get_extra_info("socket")
    if sock is None or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)


async def connect(address: str, port: int, key: bytes) -> socket.socket:
    """A connection to the task's server behind the gate. Raises OSError: it is not to be had."""
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, (address, port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        said = await _read(sock, len(gate.HELLO) + gate.NONCE_BYTES)
        if not said.startswith(gate.HELLO):
            raise ConnectionError("the server there is not an agent's gate")
        await loop.sock_sendall(sock, gate.proof(key, said[len(gate.HELLO) :]))
        await _read(sock, len(gate.OPEN))
    except BaseException:
        sock.close()
        raise
    return sock


async def _read(sock: socket.socket, size: int) -> bytes:
    """Not a byte more: the next one is the task's."""
    found = b""
    while len(found) < size:
        piece = await asyncio.get_running_loop().sock_recv(sock, size - len(found))
        if not piece:
            raise Refused("the gate ended the connection")
        found += piece
    return found
