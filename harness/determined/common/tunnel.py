"""Bytes to and from a port of a task, through the service: a websocket whose binary messages they are.

Throughput and what the library was measured against: docs/inside/proxy.md.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from determined.common.api import certs, errors, no_answer

if TYPE_CHECKING:
    import ssl

    from websockets.sync.client import ClientConnection

    from determined.common.api.certs import Cert

T = TypeVar("T")

SUBPROTOCOL = "determined-tcp"
"""Asks for the bytes of a port that speaks HTTP."""
CONNECT_SECONDS = 30.0
PIECE = 64 << 10
LARGEST = 64 << 20
"""Bytes of one message, in either direction."""
_RESET = struct.pack("ii", 1, 0)
NORMAL = 1000
"""The code of a websocket's end that is not a failure."""


class _Secured:
    """A connection by TLS that one thread reads while another one writes.

    OpenSSL allows no two calls for one connection at a time, so no call waits for the network.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._seconds = sock.gettimeout()
        self._using = threading.Lock()
        sock.setblocking(False)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self._sock.setsockopt(level, option, value)

    def settimeout(self, seconds: float | None) -> None:
        self._seconds = seconds

    def recv(self, size: int) -> bytes:
        return self._once(lambda: self._sock.recv(size))

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            piece = left
            left = left[self._once(lambda piece=piece: self._sock.send(piece)) :]  # type: ignore[misc]

    def shutdown(self, how: int) -> None:
        with self._using:
            self._sock.shutdown(how)

    def close(self) -> None:
        with self._using:
            self._sock.close()

    def _once(self, act: Callable[[], T]) -> T:
        import ssl

        while True:
            wanted = selectors.EVENT_READ
            with self._using:
                try:
                    return act()
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLWantWriteError:
                    wanted = selectors.EVENT_WRITE
            with selectors.DefaultSelector() as ready:
                ready.register(self._sock, wanted)
                if not ready.select(self._seconds):
                    raise TimeoutError("it says nothing")


class Tunnel:
    """One connection; one thread may send while another receives.

    ``is_cut``: it has ended before the port's own connection did (the service was killed, the network is
    gone): what came may be half of what was meant.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self.is_cut = False
        self._connection = connection
        self._closed = False

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """Raises OSError when the tunnel has ended."""
        for at in range(0, len(data), LARGEST):
            self._send(data[at : at + LARGEST])

    def end(self) -> None:
        """Nothing more will be sent; what the task still says is received."""
        with contextlib.suppress(OSError):
            # An empty message: a websocket's own end would end both directions.
            self._send(b"")

    def receive(self) -> bytes:
        """The next bytes; empty: there are no more."""
        from websockets.exceptions import ConnectionClosed

        try:
            while not (data := self._connection.recv(decode=False)):
                pass
        except ConnectionClosed as end:
            self.is_cut |= not self._closed and (end.rcvd is None or end.rcvd.code != NORMAL)
            return b""
        return data

    def close(self) -> None:
        self._closed = True
        self._connection.close_socket()

    def _send(self, data: bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            self._connection.send(data)
        except ConnectionClosed as end:
            raise OSError(f"the tunnel has ended: {end}") from None


def connect(url: str, token: str | None, key: str, cert: Cert | None = None) -> Tunnel:
    """A tunnel to ``key``, ``<task>`` or ``<task>:<port>``, through the service at ``url``, whose certificate
    is checked by ``cert``, else as the environment says.

    Raises the errors of :mod:`determined.common.api.errors`, with the service's own words.
    """
    parts = urlsplit(url)
    host = parts.hostname or "localhost"
    tls = certs.tls_for(url, cert)
    port = parts.port or (443 if tls else 80)
    try:
        sock: Any = socket.create_connection((host, port), CONNECT_SECONDS)
        if tls is not None:
            sock = _Secured(tls.context.wrap_socket(sock, server_hostname=tls.name or host))
        sock.settimeout(None)  # afterwards the handshake has its time, and data may come late
        address = f"{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}/proxy/{quote(key, safe=':')}/"
        return Tunnel(_shake_hands(sock, address, token))
    except OSError as error:
        raise errors.MasterNotFoundException(
            f"no answer from the service at {url}: {no_answer.why(error, url)}"
        ) from error


def _shake_hands(sock: Any, address: str, token: str | None) -> ClientConnection:
    from websockets.exceptions import InvalidHandshake, InvalidStatus
    from websockets.sync.client import connect
    from websockets.typing import Subprotocol

    try:
        return connect(
            f"ws://{address}",  # the socket is encrypted where it has to be
            sock=sock,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            additional_headers={"Authorization": f"Bearer {token}"} if token else None,
            user_agent_header=None,
            compression=None,
            max_size=LARGEST,
            open_timeout=CONNECT_SECONDS,
            ping_interval=None,
        )
    except InvalidStatus as refused:
        answer = refused.response
        raise errors.of_answer(
            answer.status_code, bytes(answer.body or answer.reason_phrase.encode())
        ) from None
    except InvalidHandshake as error:
        raise OSError(f"the server did not open a tunnel: {error}") from None


def join(
    tunnel: Tunnel,
    read: Callable[[], bytes],
    write: Callable[[bytes], object],
    at_end: Callable[[], object] = lambda: None,
) -> None:
    """Passes on what ``read`` gives and what the tunnel says, until the tunnel ends.

    ``at_end`` is called then, and has to end a ``read`` that waits.
    """

    def up() -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := read():
                tunnel.send(data)
        tunnel.end()

    sending = threading.Thread(target=up, name="tunnel", daemon=True)
    sending.start()
    try:
        while data := tunnel.receive():
            write(data)
    except OSError:
        pass
    finally:
        tunnel.close()
        at_end()


class Listener:
    """A port of this machine each of whose connections becomes a tunnel; its own threads serve it.

    ``opened``: makes a tunnel. ``failed``: is told why one cannot be made.
    """

    def __init__(
        self,
        port: int,
        opened: Callable[[], Tunnel],
        failed: Callable[[Exception], object],
        host: str = "127.0.0.1",
    ) -> None:
        self._opened = opened
        self._failed = failed
        self._socket = socket.create_server((host, port))
        self.port: int = self._socket.getsockname()[1]

    def start(self) -> None:
        threading.Thread(target=self.serve, name=f"tunnel-{self.port}", daemon=True).start()

    def serve(self) -> None:
        """Until :meth:`close`."""
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(sock,), daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _one(self, sock: socket.socket) -> None:
        with sock:
            try:
                tunnel = self._opened()
            except errors.APIException as error:
                _reset_at_end(sock)
                self._failed(error)
                return

            def end() -> None:
                with contextlib.suppress(OSError):
                    if tunnel.is_cut:
                        _reset_at_end(sock)
                    # Ends a ``recv`` that waits, without saying to the other side that all has come.
                    sock.shutdown(socket.SHUT_RD if tunnel.is_cut else socket.SHUT_RDWR)

            join(tunnel, lambda: sock.recv(PIECE), sock.sendall, end)


def _reset_at_end(sock: socket.socket) -> None:
    """Half an answer must not look like a whole one, nor none like an empty one."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def published(given: str) -> tuple[int, int]:
    """``[LOCAL:]REMOTE`` of ``--publish``: the local port and the task's. Raises ValueError."""
    local, _, remote = given.rpartition(":")
    found = int(local or remote), int(remote)
    if not all(0 < one < 65536 for one in found):
        raise ValueError(f"{given!r} must be PORT or LOCAL_PORT:PORT, each from 1 to 65535")
    return found
