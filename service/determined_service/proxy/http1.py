"""Heads and bodies of HTTP/1.1, read strictly.

The proxy stands between two parties that may each want it to see other messages than the other one does
(request smuggling). So what is not plainly one message is refused: it is never repaired. h11 would do,
at six times the cost (docs/inside/proxy.md); a test compares the two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD_BYTES = 64 << 10
"""Of a request or of an answer: lines and headers together."""
HEADERS = 200

Headers = list[tuple[bytes, bytes]]
"""Names in small letters."""

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST = re.compile(rb"(" + _TOKEN + rb") ([!-~]+) HTTP/1\.([01])")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\x00-\x08\x0a-\x1f\x7f]*)?")
_HEADER = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_HOST = re.compile(rb"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")

CHUNKED = -1
UNTIL_CLOSE = -2


class BadMessage(Exception):
    """The bytes are not one message of HTTP/1.1. ``status``: of the answer to a request."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class RequestHead:
    """A request's head. ``length``: of its body, or CHUNKED."""

    method: bytes
    target: bytes
    minor: int
    headers: Headers
    length: int
    host: bytes
    keeps_alive: bool
    upgrade: bytes

    def get(self, name: bytes) -> bytes:
        """The first header of the name; empty: there is none."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""


@dataclass(slots=True)
class AnswerHead:
    """An answer's head. ``length``: of its body, CHUNKED or UNTIL_CLOSE."""

    status: int
    line: bytes
    headers: Headers
    length: int
    keeps_alive: bool
    upgrade: bytes


def _headers(lines: list[bytes]) -> Headers:
    if len(lines) > HEADERS:
        raise BadMessage(f"{len(lines)} headers; at most {HEADERS} are allowed", 431)
    found = []
    match = _HEADER.fullmatch
    for line in lines:
        one = match(line)
        if one is None:
            raise BadMessage("a line of the head is not a header")
        found.append((one[1].lower(), one[2].rstrip(b" \t")))
    return found


def words(headers: Headers, name: bytes) -> list[bytes]:
    """The parts of a list that may be spread over several headers, in small letters."""
    return [
        word.strip().lower()
        for key, value in headers
        if key == name
        for word in value.split(b",")
        if word.strip()
    ]


def _body(headers: Headers, minor: int) -> int | None:
    """The body's length as the headers say; None: they do not."""
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings:
        if lengths:
            raise BadMessage("Content-Length and Transfer-Encoding contradict each other")
        if minor == 0 or len(codings) > 1 or codings[0].lower() != b"chunked":
            raise BadMessage("of transfer codings only one, chunked, is understood", 501)
        return CHUNKED
    if not lengths:
        return None
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise BadMessage("Content-Length must be one number")
    return int(lengths[0])


def read_request(head: bytes) -> RequestHead:
    """``head``: up to and without the empty line. Raises BadMessage."""
    first, *lines = head.split(b"\r\n")
    line = _REQUEST.fullmatch(first)
    if line is None:
        raise BadMessage("the first line is not a request of HTTP/1.1")
    target = line[2]
    if not target.startswith(b"/"):
        raise BadMessage("the address must begin with a slash")
    headers = _headers(lines)
    minor = line[3][0] - 48
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (minor and not hosts) or (hosts and not _HOST.fullmatch(hosts[0])):
        raise BadMessage("there must be one header Host, with a name")
    connection = words(headers, b"connection")
    keeps = b"close" not in connection if minor else b"keep-alive" in connection
    upgrade = b""
    length = _body(headers, minor)
    if b"upgrade" in connection:
        upgrade = b",".join(words(headers, b"upgrade"))
        # Others (h2c) are not passed on; the request goes without them.
        if upgrade != b"websocket" or line[1] != b"GET" or length or not minor:
            upgrade = b""
    return RequestHead(
        line[1],
        target,
        minor,
        headers,
        length or 0,
        hosts[0].lower() if hosts else b"",
        keeps,
        upgrade,
    )


def read_answer(head: bytes, method: bytes) -> AnswerHead:
    """``method``: of the request. Raises BadMessage."""
    first, *lines = head.split(b"\r\n")
    line = _STATUS.fullmatch(first)
    if line is None:
        raise BadMessage("the first line is not an answer of HTTP/1.1")
    headers = _headers(lines)
    status, minor = int(line[2]), line[1][0] - 48
    connection = words(headers, b"connection")
    keeps = b"close" not in connection if minor else b"keep-alive" in connection
    upgrade = b",".join(words(headers, b"upgrade")) if status == 101 else b""
    length = _body(headers, minor)
    if method == b"HEAD" or status < 200 or status in (204, 304):
        length = 0
    elif length is None:
        length, keeps = UNTIL_CLOSE, False
    return AnswerHead(status, first[9:], headers, length, keeps, upgrade)


class Body:
    """Cuts one body out of the bytes of a connection. Chunks are taken apart: what goes on is framed anew."""

    __slots__ = ("_buffer", "_in_trailer", "_left", "chunked", "is_whole")

    def __init__(self, length: int) -> None:
        self.chunked = length == CHUNKED
        self._left = 0 if self.chunked else length
        self._buffer = b""
        self._in_trailer = False
        self.is_whole = length == 0

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """The part of ``data`` that is the body's, and the rest once the body is whole. Raises BadMessage."""
        if self.chunked:
            return self._chunks(data)
        if self._left == UNTIL_CLOSE:
            return data, b""
        part = data[: self._left]
        self._left -= len(part)
        self.is_whole = self._left == 0
        return part, data[len(part) :]

    def _chunks(self, data: bytes) -> tuple[bytes, bytes]:
        parts = []
        data, self._buffer = self._buffer + data, b""
        at = 0
        while at < len(data):
            if self._left > 2:
                part = data[at : at + self._left - 2]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                continue
            if self._left:
                # The end of a chunk's line, perhaps in two parts.
                wanted = b"\r\n"[2 - self._left :]
                found = data[at : at + self._left]
                if not wanted.startswith(found):
                    raise BadMessage("a chunk is longer than it says")
                at += len(found)
                self._left -= len(found)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                if len(data) - at > 4096:
                    raise BadMessage("the line of a chunk is too long")
                self._buffer = data[at:]
                break
            line = data[at:end]
            at = end + 2
            if self._in_trailer:
                # Trailers are dropped.
                if not line:
                    self.is_whole = True
                    return b"".join(parts), data[at:]
                if not _HEADER.fullmatch(line):
                    raise BadMessage("a trailer is not a header")
                continue
            size = _CHUNK.fullmatch(line)
            if size is None:
                raise BadMessage("a chunk does not begin with its length")
            length = int(size[1], 16)
            if length:
                self._left = length + 2
            else:
                self._in_trailer = True
        return b"".join(parts), b""


def chunk(data: bytes) -> bytes:
    """``data`` as a chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
