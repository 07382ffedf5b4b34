"""Sends answers in pieces that the client takes in time, and only while the client is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from determined.common.wire import paths
from determined_service.proxy.lobby import UNTAKEN_S

PIECE_BYTES = 256 * 1024
PIECE_S = float(UNTAKEN_S)
"""Seconds that a client has to take a piece (a pager that nobody scrolls takes none): then its connection
ends, and the memory of what it has not taken is free again. It would not end by itself where a client takes a
byte now and then."""
LOOK_S = 1.0
"""A read that takes longer is watched: it ends when its client has gone."""


class PacedAnswer:
    """``send`` of one answer, which knows how far it is."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = self.has_ended = False
        self.is_unwanted = False
        """The client has gone, or has taken nothing for too long."""
        self._is_given_up = False
        self._patience: asyncio.Timeout | None = None

    async def send(self, message: Message) -> None:
        """As ASGI has it. Raises ConnectionError once the client takes nothing any more."""
        self.has_begun = True
        body: Any = message.get("body", b"")
        more = bool(message.get("more_body"))
        if message["type"] != "http.response.body" or (len(body) <= PIECE_BYTES and not more):
            # A short complete body does not wait, because it fits into the connection's buffer.
            self.has_ended = message["type"] == "http.response.body"
            await self._send(message)
            return
        with memoryview(body) as view:
            for begin in range(0, max(len(view), 1), PIECE_BYTES):
                piece = bytes(view[begin : begin + PIECE_BYTES])
                goes_on = more or begin + PIECE_BYTES < len(view)
                self.has_ended = not goes_on
                await self._patiently(piece, goes_on)

    async def _patiently(self, piece: bytes, more: bool) -> None:
        message = {"type": "http.response.body", "body": piece, "more_body": more}
        try:
            async with asyncio.timeout(0 if self._is_given_up else PIECE_S) as self._patience:
                await self._send(message)
        except TimeoutError:
            self.is_unwanted = True
            raise ConnectionAbortedError("the client takes no more of its answer") from None
        finally:
            self._patience = None

    def give_up(self) -> None:
        """The client is too slow, and others wait: stop sending its answer."""
        self._is_given_up = True
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())


async def while_wanted(
    scope: Scope, receive: Receive, answer: PacedAnswer, answering: Callable[[], Awaitable[None]]
) -> None:
    """Awaits ``answering()``, which is cancelled when it only reads and its client has gone.

    ``receive`` gives nothing any more but the end of the connection.
    """
    current = asyncio.current_task()
    assert current is not None
    watching: list[asyncio.Task[None]] = []

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not answer.has_ended:
            answer.is_unwanted = True
            current.cancel()

    loop = asyncio.get_running_loop()
    later: asyncio.TimerHandle | None = None
    # Agents and flows use long polls, which notice a disconnect themselves.
    if scope["method"] in ("GET", "HEAD") and not scope["path"].startswith(paths.PREFIX):
        later = loop.call_later(LOOK_S, lambda: watching.append(loop.create_task(watch())))
    try:
        await answering()
    except asyncio.CancelledError:
        # Somebody else may have cancelled it too.
        if not answer.is_unwanted or current.uncancel():
            raise
    finally:
        if later is not None:
            later.cancel()
        for task in watching:
            task.cancel()
