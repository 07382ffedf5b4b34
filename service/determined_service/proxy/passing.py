"""Decides which headers pass the proxy between a visitor and a task, and which are changed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from determined_service.proxy.http1 import CHUNKED, AnswerHead, Headers, RequestHead, words

COOKIE = b"determined-visit"
"""The visitor's login at one host name of one task. The task never sees it."""
SECURE_COOKIE = b"__Host-determined-visit"
"""The same where the visitor's way to the proxy is encrypted: no other host name can set one so named."""
TCP = "determined-tcp"
"""The subprotocol of a websocket by which a client asks for the bytes of the port itself."""
TERMINAL = "determined-terminal"
"""The same for a page with a terminal, which tells in text messages how many bytes it has shown."""
TICKET = "ticket."
"""With this begins the subprotocol in which such a page shows its ticket: a page can send no other header."""

_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
        *(b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    )
)
# Replaced by the proxy's own, or for the proxy alone.
_NOT_SENT = _HOP | {
    *(b"content-length", b"cookie", b"authorization", b"forwarded", b"x-forwarded-for"),
    *(b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-prefix", b"x-real-ip"),
    b"grpc-metadata-x-allocation-token",
}
# What would change more than the task's own pages.
_NOT_RETURNED = _HOP | {
    *(b"content-length", b"set-cookie", b"alt-svc", b"strict-transport-security"),
    *(b"clear-site-data", b"public-key-pins", b"expect-ct", b"nel", b"report-to"),
    b"reporting-endpoints",
}
# At the service's own address: each page there runs in a separate origin, and stores nothing.
_SANDBOX = (
    b"Content-Security-Policy: sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts; "
    b"frame-ancestors 'none'\r\nX-Frame-Options: DENY\r\n"
)
_OWN_HOST = b"Content-Security-Policy: frame-ancestors 'self'\r\nOrigin-Agent-Cluster: ?1\r\n"
_CANONICAL = {b"www-authenticate": b"WWW-Authenticate", b"etag": b"ETag"}


@dataclass(frozen=True, slots=True)
class Way:
    """The way by which a request came. ``own_host``: at the task's own host name; else below the service's
    address. ``prefix``: what stands before the task's own paths there. ``scheme``: of the visitor's way.
    ``peer``: its address, behind those that servers before this one have named. ``takes_login``: the header
    Authorization was for the proxy."""

    own_host: bool
    prefix: bytes
    scheme: bytes
    peer: bytes
    takes_login: bool


def _name(name: bytes) -> bytes:
    return _CANONICAL.get(name) or name.title()


def cookies(headers: Headers) -> tuple[list[str], bytes]:
    """The visitor's logins, and the cookies that are the task's."""
    logins, others = [], []
    for name, value in headers:
        if name != b"cookie":
            continue
        for item in value.split(b";"):
            key, _, content = item.strip().partition(b"=")
            if key in (COOKIE, SECURE_COOKIE):
                logins.append(content.decode("latin-1"))
            elif item.strip():
                others.append(item.strip())
    return logins, b"; ".join(others)


def cookie(headers: Headers, name: bytes) -> str:
    """The value of a cookie; empty: it is not there."""
    for header, value in headers:
        for item in value.split(b";") if header == b"cookie" else ():
            key, _, content = item.strip().partition(b"=")
            if key == name:
                return content.decode("latin-1")
    return ""


def request_head(request: RequestHead, target: bytes, way: Way) -> bytes:
    """The head that is sent to the task."""
    nominated = frozenset(words(request.headers, b"connection"))
    lines = [b"%b %b HTTP/1.1\r\n" % (request.method, target)]
    for name, value in request.headers:
        if name in _NOT_SENT:
            if name == b"authorization" and way.own_host and not way.takes_login:
                lines.append(b"Authorization: %b\r\n" % value)
            continue
        if name not in nominated:
            lines.append(b"%b: %b\r\n" % (_name(name), value))
    if not request.host:
        lines.append(b"Host: localhost\r\n")
    if way.own_host:
        _, others = cookies(request.headers)
        if others:
            lines.append(b"Cookie: %b\r\n" % others)
    if request.upgrade:
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
    if request.length == CHUNKED:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    elif request.length or request.method in (b"POST", b"PUT", b"PATCH"):
        lines.append(b"Content-Length: %d\r\n" % request.length)
    lines.append(
        b"X-Forwarded-For: %b\r\nX-Forwarded-Host: %b\r\nX-Forwarded-Proto: %b\r\n"
        % (way.peer, request.host, way.scheme)
    )
    if way.prefix:
        lines.append(b"X-Forwarded-Prefix: %b\r\n" % way.prefix)
    lines.append(b"\r\n")
    return b"".join(lines)


def _cookie(value: bytes) -> bytes | None:
    """A task's cookie for its own host name alone; None: it is none that a task may set."""
    first, *attributes = (part.strip() for part in value.split(b";"))
    name = first.partition(b"=")[0].strip().lower()
    if name in (COOKIE, SECURE_COOKIE.lower()):
        return None
    kept = [one for one in attributes if not re.match(rb"domain\s*(=|$)", one, re.IGNORECASE)]
    return b"; ".join([first, *kept])


def _location(value: bytes, request: RequestHead, way: Way) -> bytes:
    """The address to which the answer redirects the visitor; the task's own paths are put below the
    prefix."""
    if not way.prefix:
        return value
    parts = urlsplit(value)
    if parts.netloc and parts.netloc.lower() != request.host:
        return value
    if not parts.netloc and (not value.startswith(b"/") or value.startswith(b"//")):
        return value
    path = parts.path or b"/"
    rest = (b"?" + parts.query if parts.query else b"") + (
        b"#" + parts.fragment if parts.fragment else b""
    )
    if path.startswith(way.prefix + b"/") or path == way.prefix:
        return path + rest
    return way.prefix + path + rest


def answer_head(answer: AnswerHead, request: RequestHead, way: Way, keeps_alive: bool) -> bytes:
    """The head that is sent to the visitor."""
    nominated = frozenset(words(answer.headers, b"connection"))
    lines = [b"HTTP/1.1 %b\r\n" % answer.line]
    for name, value in answer.headers:
        if name == b"set-cookie" and way.own_host:
            kept = _cookie(value)
            if kept is not None:
                lines.append(b"Set-Cookie: %b\r\n" % kept)
        elif name in _NOT_RETURNED or name in nominated:
            continue
        elif name == b"location":
            try:
                lines.append(b"Location: %b\r\n" % _location(value, request, way))
            except ValueError:
                continue
        elif name == b"service-worker-allowed" and not way.own_host:
            continue
        else:
            lines.append(b"%b: %b\r\n" % (_name(name), value))
    lines.append(_OWN_HOST if way.own_host else _SANDBOX)
    if answer.upgrade:
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
    elif answer.length >= 0:
        declared = next((v for n, v in answer.headers if n == b"content-length"), None)
        if answer.length or (answer.status >= 200 and answer.status not in (204, 304)):
            # The answer to HEAD says what GET would have.
            head = declared if request.method == b"HEAD" else b"%d" % answer.length
            if head is not None:
                lines.append(b"Content-Length: %b\r\n" % head)
    elif request.minor:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    if not answer.upgrade and not keeps_alive:
        lines.append(b"Connection: close\r\n")
    elif not answer.upgrade and not request.minor:
        lines.append(b"Connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def is_from_elsewhere(request: RequestHead, scheme: bytes) -> bool:
    """True if a page of another origin may be behind the request, which must not have the visitor's login.

    A visitor may follow a link from anywhere, at the top of a window.
    """
    own = scheme + b"://" + request.host
    origin = request.get(b"origin")
    if request.upgrade:
        return origin != own
    site = request.get(b"sec-fetch-site")
    if site:
        if site in (b"same-origin", b"none"):
            return False
        return not (
            request.method in (b"GET", b"HEAD")
            and request.get(b"sec-fetch-mode") == b"navigate"
            and request.get(b"sec-fetch-dest") == b"document"
        )
    # An old browser, or none.
    return bool(origin) and origin != own
