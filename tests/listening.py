"""Servers of the tests: :func:`listening` and :func:`answering`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def listening() -> socket.socket:
    """Listens on a free port of this machine.

    The socket says that it is TCP, which ``socket.socket()`` leaves open. asyncio sets TCP_NODELAY only for
    sockets whose protocol is TCP. Without it, the second part of each answer waits 40 ms for the
    acknowledgement of the first. A service that is given a host and a port, as ours is, always has it.
    """
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


@contextmanager
def answering(answer: bytes | None) -> Iterator[int]:
    """A program on a port of this machine that says ``answer`` to everybody; None: no variable."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                held.append(client)
                if answer is not None:
                    client.recv(65536)
                    client.sendall(answer)
                    client.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for client in held:
            client.close()
