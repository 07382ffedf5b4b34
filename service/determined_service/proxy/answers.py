"""The proxy's own answers: why a visitor does not see the task yet, or any more."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from dataclasses import dataclass
from http import HTTPStatus

from determined_service.proxy.http1 import RequestHead

RELOAD_S = 2
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem; }
code { font-size: 0.9em; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = (
    f"Content-Security-Policy: default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Frame-Options: DENY\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\nVary: Accept\r\n"
)
_TO_SSH = (
    b"the tunnel has sent no login: use det of determined-prefect, or give Determined's own"
    b" determined.cli.tunnel the option --auth"
)
# As in the service's own refusals: gRPC's numbers and names.
_CODES = {
    400: (3, "InvalidArgument"),
    401: (16, "Unauthenticated"),
    403: (7, "PermissionDenied"),
    404: (5, "NotFound"),
    409: (9, "FailedPrecondition"),
    502: (14, "Unavailable"),
    503: (14, "Unavailable"),
    504: (4, "DeadlineExceeded"),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why the request does not reach the task. ``again``: it may in a moment, so the page loads
    itself again. ``link``: a page that helps."""

    status: int
    text: str
    again: bool = False
    link: str = ""


def is_bare_tunnel(request: RequestHead) -> bool:
    """True if Determined's published client asks for a tunnel; its `det shell open` sends no login."""
    return bool(request.upgrade) and request.get(b"user-agent").startswith(b"Lomond/")


def tell_ssh(request: RequestHead) -> bytes:
    """Accept the websocket and send ssh a message that it shows: the reason why it cannot go on.

    Of an answer that refuses the websocket that client shows a traceback, at best: ssh ends it before.
    """
    key = request.get(b"sec-websocket-key") + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key, usedforsecurity=False).digest())
    # SSH_MSG_DISCONNECT (1), by application (11): RFC 4253, 6 and 11.1; without a key it is not encrypted.
    text = len(_TO_SSH).to_bytes(4) + _TO_SSH
    payload = b"\x01" + (11).to_bytes(4) + text + (0).to_bytes(4)
    padding = 8 - (5 + len(payload)) % 8 + 8
    packet = (1 + len(payload) + padding).to_bytes(4) + bytes((padding,)) + payload + bytes(padding)
    said = b"SSH-2.0-determined_prefect\r\n" + packet
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        b"\x82\x7e" + len(said).to_bytes(2) + said
    )


def wants_page(request: RequestHead | None) -> bool:
    """True if a browser asks for a page."""
    return request is not None and b"text/html" in request.get(b"accept").lower()


def refuse(refusal: Refusal, request: RequestHead | None, keeps_alive: bool) -> bytes:
    """The whole answer."""
    if wants_page(request):
        kind, body = "text/html; charset=utf-8", _page(refusal)
    else:
        code, reason = _CODES.get(refusal.status, (2, "Unknown"))
        kind = "application/json"
        error = {"code": code, "reason": reason, "error": refusal.text}
        body = json.dumps({"error": error, "message": refusal.text})
    return whole(
        refusal.status,
        body,
        kind,
        request,
        keeps_alive,
        (f"Retry-After: {RELOAD_S}\r\n" if refusal.again else "")
        + ("WWW-Authenticate: Bearer\r\n" if refusal.status == 401 else ""),
    )


def whole(
    status: int,
    body: str,
    kind: str,
    request: RequestHead | None,
    keeps_alive: bool,
    more: str = "",
) -> bytes:
    content = body.encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(content)}\r\n{_HEADERS}{more}"
        + ("" if keeps_alive else "Connection: close\r\n")
        + "\r\n"
    )
    if request is not None and request.method == b"HEAD":
        content = b""
    return head.encode("latin-1", "replace") + content


def redirect(where: str, request: RequestHead, keeps_alive: bool, more: str = "") -> bytes:
    """To another address; ``where`` is ASCII without line breaks."""
    return whole(302, "", "text/plain", request, keeps_alive, f"Location: {where}\r\n{more}")


def _page(refusal: Refusal) -> str:
    title = {401: "Log in", 403: "Not yours", 404: "Not found"}.get(
        refusal.status, "Not ready yet" if refusal.again else "Not there"
    )
    reload = f'<meta http-equiv="refresh" content="{RELOAD_S}">' if refusal.again else ""
    link = f'<p><a href="{html.escape(refusal.link)}">Log in</a></p>' if refusal.link else ""
    waits = "<p>This page loads itself again until then.</p>" if refusal.again else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{reload}<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"<p>{html.escape(refusal.text)}</p>\n{waits}{link}</body>\n</html>\n"
    )
