"""Through the gate before a task's port on another machine (:mod:`determined.common.gate`)."""

from __future__ import annotations

import asyncio
import socket

from determined.common import gate


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
            raise ConnectionError("what answers there is no gate of an agent's")
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
            raise ConnectionError("the gate ended the connection")
        found += piece
    return found
