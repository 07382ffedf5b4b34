"""Bytes to and from a port of a task, through the service: a websocket whose binary messages they are.

What a client needs of RFC 6455, and no more: no extension, no fragment of its own. A library for it would be
one more dependency of every training image.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from determined.common.api import certs, errors, no_answer

if TYPE_CHECKING:
    import ssl

    from determined.common.api.certs import Cert

T = TypeVar("T")

SUBPROTOCOL = "determined-tcp"
"""Asks for the bytes of a port that speaks HTTP."""
CONNECT_SECONDS = 30.0
PIECE = 64 << 10
LARGEST = 64 << 20
_RESET = struct.pack("ii", 1, 0)
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
NORMAL = 1000
"""The code of a websocket's end that is no failure."""
_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10


class _Socket(Protocol):
    """What a tunnel needs of a connection."""

    def recv(self, size: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class _Secured:
    """A connection by TLS that one thread reads while another one writes.

    OpenSSL allows no two calls for one connection at a time, so no call waits for the network.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._seconds = sock.gettimeout()
        self._using = threading.Lock()
        sock.setblocking(False)

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

    def __init__(self, sock: _Socket, rest: bytes = b"") -> None:
        self.is_cut = False
        self._sock = sock
        self._buffer = bytearray(rest)
        self._sending = threading.Lock()
        self._over = False

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """Raises OSError when the tunnel has ended."""
        for at in range(0, len(data), LARGEST):
            self._send(_BINARY, data[at : at + LARGEST])

    def end(self) -> None:
        """Nothing more will be sent; what the task still says is received."""
        with contextlib.suppress(OSError):
            # An empty message: a websocket's own end would end both directions.
            self._send(_BINARY, b"")

    def receive(self) -> bytes:
        """The next bytes; empty: there are no more."""
        while not self._over:
            first, second = self._read(2) or b"\0\0"
            code, size = first & 15, second & 127
            if not first:
                break
            if size > 125:
                size = int.from_bytes(self._read(2 if size == 126 else 8))
            if second & 128 or size > LARGEST:
                break
            data = self._read(size)
            if len(data) < size:
                break
            if code == _CLOSE:
                self._over = int.from_bytes(data[:2]) == NORMAL
                break
            if code == _PING:
                with contextlib.suppress(OSError):
                    self._send(_PONG, data)
            elif code in (_BINARY, _TEXT, _CONTINUED) and data:
                return data
        self.is_cut, self._over = self.is_cut or not self._over, True
        return b""

    def close(self) -> None:
        self._over = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _send(self, code: int, data: bytes) -> None:
        if len(data) < 126:
            size = bytes((len(data) | 128,))
        elif len(data) < 1 << 16:
            size = bytes((126 | 128,)) + len(data).to_bytes(2)
        else:
            size = bytes((127 | 128,)) + len(data).to_bytes(8)
        key = os.urandom(4)
        # One operation on two large numbers is as fast as a loop in C.
        mask = (key * (len(data) // 4 + 1))[: len(data)]
        masked = (int.from_bytes(data) ^ int.from_bytes(mask)).to_bytes(len(data))
        with self._sending:
            self._sock.sendall(bytes((128 | code,)) + size + key + masked)

    def _read(self, size: int) -> bytes:
        """So many bytes; fewer: the connection has ended."""
        while len(self._buffer) < size:
            try:
                piece = self._sock.recv(PIECE)
            except OSError:
                piece = b""
            if not piece:
                return b""
            self._buffer += piece
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found


def connect(url: str, token: str | None, key: str, cert: Cert | None = None) -> Tunnel:
    """A tunnel to ``key``, ``<task>`` or ``<task>:<port>``, through the service at ``url``, whose certificate
    is checked by ``cert``, else as the environment says.

    Raises the errors of :mod:`determined.common.api.errors`, with the service's own words.
    """
    parts = urlsplit(url)
    host = parts.hostname or "localhost"
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        sock: _Socket = (plain := socket.create_connection((host, port), CONNECT_SECONDS))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if parts.scheme == "https":
            cert = cert or certs.default_load(url)
            secured = cert.context().wrap_socket(plain, server_hostname=cert.name or host)
            sock = _Secured(secured)
        return _shake_hands(sock, parts.netloc, parts.path.rstrip("/"), token, key)
    except OSError as error:
        raise errors.MasterNotFoundException(
            f"no answer from the service at {url}: {no_answer.why(error)}"
        ) from error


def _shake_hands(sock: _Socket, netloc: str, prefix: str, token: str | None, key: str) -> Tunnel:
    nonce = base64.b64encode(os.urandom(16))
    login = f"Authorization: Bearer {token}\r\n" if token else ""
    sock.sendall(
        f"GET {prefix}/proxy/{quote(key, safe=':')}/ HTTP/1.1\r\nHost: {netloc.rpartition('@')[2]}\r\n"
        f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {nonce.decode()}\r\n"
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n{login}\r\n".encode()
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = sock.recv(PIECE)
        if not piece or len(answer) > PIECE:
            sock.close()
            raise OSError("it ended the connection instead of opening a tunnel")
        answer += piece
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    status = int(first.split()[1])
    if status != 101:
        length = int(headers.get("content-length", "0") or "0")
        while len(rest) < length and (piece := sock.recv(PIECE)):
            rest += piece
        sock.close()
        raise errors.of_answer(status, rest or first.encode())
    expected = base64.b64encode(hashlib.sha1(nonce + _GUID, usedforsecurity=False).digest())
    if headers.get("sec-websocket-accept", "").encode() != expected:
        sock.close()
        raise OSError("what answers there is no websocket")
    sock.settimeout(None)
    return Tunnel(sock, rest)


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
    """A port of this machine each of whose connections becomes a tunnel; threads of its own serve it.

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
