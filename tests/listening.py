"""A socket for a server of the tests: :func:`listening`."""

from __future__ import annotations

import socket


def listening() -> socket.socket:
    """Listens on a free port of this machine.

    The socket says that it is TCP, which ``socket.socket()`` leaves open. asyncio sets TCP_NODELAY only for
    sockets that say so. Without it, the second part of each answer waits 40 ms for the acknowledgement of the
    first. A service that is given a host and a port, as ours is, always has it.
    """
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener
