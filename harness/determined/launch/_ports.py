"""Free ports for one gang. Trials share machines, so a fixed port may be another trial's."""

from __future__ import annotations

import socket


def listen(host: str = "127.0.0.1") -> socket.socket:
    """A listening socket at a free port; ``host`` "" is every interface."""
    listener = socket.socket()
    listener.bind((host, 0))
    listener.listen(1024)
    return listener


def reserve(host: str = "127.0.0.1") -> socket.socket:
    """A free port for another process to listen at (with SO_REUSEADDR, as is usual): while this socket is
    open, no other process that asks for a free port gets this one.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((host, 0))
    return holder


def port_of(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port
