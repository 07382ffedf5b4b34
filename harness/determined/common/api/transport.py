"""Requests over HTTP/1.1 by the standard library's client, whose connections are kept for the next request.

A process pays for the code that it touches: a library for all of HTTP costs a command tens of milliseconds
for its import, and a fork of a warm interpreter 8 ms for three requests.

Tests replace the network by a transport of httpx, such as ``httpx.MockTransport(handler)``.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import quote, urlsplit

import orjson

from determined.common.api import certs

if TYPE_CHECKING:
    import httpx

    from determined.common.api.certs import Cert

PIECE = 64 << 10
IDLE_S = 4.0
"""A connection that was idle for longer is not used again: uvicorn closes it after five seconds."""
# What may stand in a path or a query as it is.
_AS_IT_IS = "/:?#[]@!$&'()*+,;=%~"
_FAILURES = (OSError, http.client.HTTPException)


class NoAnswerError(Exception):
    """No whole answer came.

    Args:
        cause: what happened.
        was_sent: the service may have received the request.
        seconds: the time limit that was reached, if one was.
    """

    def __init__(self, cause: Exception, was_sent: bool, seconds: float | None = None) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.cause = cause
        self.was_sent = was_sent
        self.seconds = seconds


@dataclass(slots=True)
class HttpRequest:
    """One request. ``path`` is quoted where it must be; ``connect_s`` and ``read_s`` are seconds."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes | None
    connect_s: float
    read_s: float | None


class BodyStream(Protocol):
    """The pieces of an answer's body, as they arrive; :meth:`close` ends it early."""

    def __iter__(self) -> Iterator[bytes]: ...
    def close(self) -> None: ...


class Response:
    """An answer. Iterating over its bytes, or closing it, frees its connection."""

    def __init__(self, status_code: int, headers: Message, body: BodyStream | None) -> None:
        self.status_code = status_code
        self.headers = headers
        self._body = body
        self._content: bytes | None = None if body else b""

    @property
    def content(self) -> bytes:
        """The whole body. Raises NoAnswerError."""
        if self._content is None:
            self._content = b"".join(self.iter_bytes())
        return self._content

    @property
    def text(self) -> str:
        """The whole body as text."""
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """The whole body, parsed. Raises ValueError."""
        return orjson.loads(self.content)

    def iter_bytes(self) -> Iterator[bytes]:
        """The body in pieces, as they arrive. Raises NoAnswerError when it breaks off."""
        if self._content is not None:
            yield self._content
        elif self._body is not None:
            yield from self._body

    def close(self) -> None:
        if self._body is not None:
            self._body.close()


class Transport(Protocol):
    """Takes requests to a service and returns its answers."""

    def send(self, request: HttpRequest) -> Response:
        """Raises NoAnswerError."""
        ...

    def close(self) -> None: ...


AnyTransport: TypeAlias = "Transport | httpx.BaseTransport"


class _Connection(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, tls: certs.Tls | None) -> None:
        super().__init__(host, port)
        self.tls = tls
        self.used_at = 0.0
        if tls is not None:
            self.default_port = 443

    def connect(self) -> None:
        super().connect()
        if self.tls is not None:
            name = self.tls.name or self.host
            self.sock = self.tls.context.wrap_socket(self.sock, server_hostname=name)

    @property
    def is_fresh(self) -> bool:
        """True if it can be used again: the service has not closed it, and is not about to."""
        if self.sock is None or time.monotonic() - self.used_at > IDLE_S:
            return False
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return not poll.poll(0)


class HttpTransport:
    """Connections to the service at ``url``, whose certificate is checked by ``cert``, else as the
    environment says (:func:`determined.common.api.certs.tls_for`, which says what it raises).

    Thread-safe. A forked process has its own connections: by those of its parent each would read the
    other's answers.
    """

    def __init__(self, url: str, cert: Cert | None = None) -> None:
        parts = urlsplit(url)
        self._tls = certs.tls_for(url, cert)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed = False

    def send(self, request: HttpRequest) -> Response:
        if self._pid != os.getpid():
            self._start()
        if self._closed:
            raise RuntimeError("the session is closed")
        given = quote(request.path, safe=_AS_IT_IS)
        path = self._prefix + (given if given.startswith(("/", "?")) else f"/{given}")
        connection = self._take()
        is_connected = connection.sock is not None
        try:
            if not is_connected:
                connection.timeout = request.connect_s
                connection.connect()
                is_connected = True
            connection.sock.settimeout(request.read_s)
            connection.request(request.method, path, request.content, request.headers)
            answer = connection.getresponse()
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, _FAILURES):
                seconds = request.read_s if is_connected else request.connect_s
                raise NoAnswerError(error, is_connected, seconds) from error
            raise
        return Response(
            answer.status, answer.headers, _Arriving(self, connection, answer, request.read_s)
        )

    def _take(self) -> _Connection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = _Connection(self._host, self._port, self._tls)
                break
            if connection.is_fresh:
                break
            connection.close()
        self._busy.add(connection)
        return connection

    def _drop(self, connection: _Connection) -> None:
        self._busy.discard(connection)
        connection.close()

    def _give_back(self, connection: _Connection) -> None:
        self._busy.discard(connection)
        connection.used_at = time.monotonic()
        if self._closed:
            connection.close()
        elif connection.sock is not None:
            self._idle.append(connection)

    def close(self) -> None:
        """Ends every connection; a request of another thread fails at once."""
        if self._pid != os.getpid():
            return
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        for connection in list(self._busy):
            with contextlib.suppress(OSError, AttributeError):  # it ends by itself meanwhile
                connection.sock.shutdown(socket.SHUT_RDWR)


class _Arriving:
    """The body of an answer that is arriving. At its end the connection can be used again."""

    def __init__(
        self,
        owner: HttpTransport,
        connection: _Connection,
        answer: http.client.HTTPResponse,
        seconds: float | None,
    ) -> None:
        self._owner = owner
        self._connection: _Connection | None = connection
        self._answer = answer
        self._seconds = seconds

    def __iter__(self) -> Iterator[bytes]:
        try:
            while piece := self._answer.read1(PIECE):
                yield piece
            if self._answer.length:
                raise http.client.IncompleteRead(b"", self._answer.length)
        except _FAILURES as error:
            raise NoAnswerError(error, True, self._seconds) from error
        else:
            self._answer.close()
            if self._connection is not None:
                self._owner._give_back(self._connection)
                self._connection = None
        finally:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._answer.close()
            self._owner._drop(self._connection)
            self._connection = None


def adapted(inner: AnyTransport, url: str) -> Transport:
    """``inner``; a transport of httpx as one of ours."""
    return inner if isinstance(inner, HttpTransport | _OfHttpx) else _OfHttpx(inner, url)


class _OfHttpx:
    def __init__(self, inner: Any, url: str) -> None:
        self._inner = inner
        self._url = url

    def send(self, request: HttpRequest) -> Response:
        import httpx

        address = f"{self._url}/{request.path.lstrip('/')}"
        asked = httpx.Request(
            request.method,
            address,
            headers=request.headers,
            content=request.content,
            extensions={"timeout": {"connect": request.connect_s, "read": request.read_s}},
        )
        try:
            answer = self._inner.handle_request(asked)
        except httpx.TransportError as error:
            raise _no_answer(error) from error
        headers = Message()
        for name, value in answer.headers.items():
            headers[name] = value
        return Response(answer.status_code, headers, _BodyOfHttpx(answer))

    def close(self) -> None:
        self._inner.close()


class _BodyOfHttpx:
    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        import httpx

        pieces: Iterable[bytes] = self._answer.iter_bytes()
        try:
            yield from pieces
        except httpx.TransportError as error:
            raise _no_answer(error) from error

    def close(self) -> None:
        self._answer.close()


def _no_answer(error: httpx.TransportError) -> NoAnswerError:
    import httpx

    not_sent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
    return NoAnswerError(error, not isinstance(error, not_sent))
