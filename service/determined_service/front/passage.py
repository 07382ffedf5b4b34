"""Downloads: an answer of REST that goes through to the browser while it is made, in the visitor's name.

Pages hold what REST answers as a whole (:mod:`~determined_service.front.visits`); a checkpoint or a log may
be of any size. REST's own limits hold: how fast a client takes it, how many are read at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlencode

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from determined.common.wire import limits
from determined_service.base.aside import aside
from determined_service.front.rendering import refused
from determined_service.front.visits import Parameters, Visit, refusal_of

_PASSED_ON = (b"range", b"if-range")
_KEPT = (
    b"content-type",
    b"content-length",
    b"content-range",
    b"content-disposition",
    b"content-security-policy",
    b"x-content-type-options",
    b"accept-ranges",
    b"etag",
)
_REFUSAL_BYTES = limits.MIB

Convert = Callable[[bytes], bytes]


class Passage(Response):
    """The answer to ``GET path`` of REST; a refusal is a page.

    Args:
        path: decoded, for example ``/api/v1/checkpoints/…/files/a b``.
        file_name: what the browser stores it as, in ASCII; empty: as REST says.
        convert: makes text of whole lines; None: the bytes go through as they are.
    """

    def __init__(
        self,
        visit: Visit,
        path: str,
        parameters: Parameters | None = None,
        *,
        accept: str = "*/*",
        file_name: str = "",
        convert: Convert | None = None,
    ) -> None:
        super().__init__()
        self._visit, self._path, self._accept = visit, path, accept
        self._query = urlencode(parameters or {}, doseq=True).encode()
        self._file_name, self._convert = file_name, convert

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._visit.request.app.state
        with state.auth.lend(self._visit.subject) as lent:
            asked = self._visit.request.app(
                self._scope(scope, lent), _nothing_more(), _Way(self, send)
            )
            # In a task of its own: what a request notes about itself is not the page's.
            await asyncio.create_task(asked)

    def _scope(self, outer: Scope, token: str) -> Scope:
        headers = [
            (b"host", b"service"),
            (b"authorization", f"Bearer {token}".encode()),
            (b"accept", self._accept.encode()),
            *((name, value) for name, value in outer["headers"] if name in _PASSED_ON),
        ]
        return {
            "type": "http",
            "asgi": outer["asgi"],
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode("utf-8", "replace"),
            "query_string": self._query,
            "root_path": "",
            "headers": headers,
            "client": outer.get("client"),
            "server": ("service", 80),
        }

    def headers_of(self, given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The browser's headers."""
        left = [(name, value) for name, value in given if name.lower() in _KEPT]
        if self._file_name:
            named = f'attachment; filename="{self._file_name}"'.encode()
            left = [one for one in left if one[0].lower() != b"content-disposition"]
            left.append((b"content-disposition", named))
        if self._convert is not None:
            others = (b"content-type", b"content-length")
            left = [one for one in left if one[0].lower() not in others]
            left.append((b"content-type", b"text/plain; charset=utf-8"))
            left.append((b"x-content-type-options", b"nosniff"))
        return [*left, (b"cache-control", b"no-store")]

    async def page_of(self, status: int, body: bytes) -> Response:
        """The page about REST's refusal."""
        return refused(self._visit.request, refusal_of(status, body))


class _Way:
    """``send`` of the request to REST."""

    def __init__(self, passage: Passage, send: Send) -> None:
        self._passage, self._send = passage, send
        self._convert = passage._convert
        self._status = 200
        self._rest = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if self._status < 400:
                headers = self._passage.headers_of(list(message["headers"]))
                await self._send({**message, "headers": headers})
            return
        if self._status >= 400:
            await self._refuse(message)
        elif self._convert is None:
            await self._send(message)
        else:
            await self._send({**message, "body": await self._text(message, self._convert)})

    async def _text(self, message: Message, convert: Convert) -> bytes:
        self._rest += message.get("body", b"")
        end = len(self._rest) if not message.get("more_body") else self._rest.rfind(b"\n") + 1
        lines = bytes(self._rest[:end])
        del self._rest[:end]
        return await aside(len(lines), convert, lines) if lines else b""

    async def _refuse(self, message: Message) -> None:
        if len(self._rest) < _REFUSAL_BYTES:
            self._rest += message.get("body", b"")
        if not message.get("more_body"):
            shown = await self._passage.page_of(self._status, bytes(self._rest))
            await self._send(
                {
                    "type": "http.response.start",
                    "status": shown.status_code,
                    "headers": shown.raw_headers,
                }
            )
            await self._send({"type": "http.response.body", "body": shown.body})


def _nothing_more() -> Receive:
    """``receive`` of a request without a body. That the browser has gone is noticed outside."""
    asked = False

    async def receive() -> Message:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive
