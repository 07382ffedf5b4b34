"""A connection to a task's port, and the way to open one."""

from __future__ import annotations

import asyncio
import time
from enum import Enum, auto
from typing import Protocol, cast

from determined_service.proxy import gates, http1
from determined_service.proxy.answers import Refusal
from determined_service.proxy.http1 import AnswerHead, BadMessage, Body, RequestHead
from determined_service.proxy.questions import Route
from determined_service.proxy.tunnel_frames import CUT_OFF, NORMAL, TunnelFrames

CONNECT_S = 5.0


class Stage(Enum):
    """What a visitor's connection is at."""

    HEAD = auto()  # waits for a request
    ASKING = auto()  # waits for the service, or for the connection to the task
    PASSING = auto()  # a request, or its answer, is on the way
    RAW = auto()  # a websocket
    TUNNEL = auto()  # bytes of a port, in a websocket
    CLOSED = auto()


class VisitorSide(Protocol):
    """The part of a visitor's connection that the task's connection uses.

    The answer of a request comes as one ``send_head``, bytes on ``transport``, and ``answered``; or as
    ``switch``, after which bytes pass without being read. ``fail`` and ``lost`` end it early.
    """

    stage: Stage
    seen: float
    request: RequestHead
    transport: asyncio.Transport
    is_sent: bool
    chunks: bool
    frames: TunnelFrames | None

    def send_head(self, answer: AnswerHead) -> None: ...
    def answered(self, task: TaskConnection | None) -> None: ...
    def switch(self, answer: AnswerHead, data: bytes) -> None: ...
    def fail(self, refusal: Refusal) -> None: ...
    def lost(self, task: TaskConnection, nothing_came: bool) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class TaskConnection(asyncio.Protocol):
    """A connection to a task's port."""

    __slots__ = (
        "_body",
        "_buffer",
        "answer",
        "key",
        "since",
        "transport",
        "used",
        "visitor",
    )

    def __init__(self, key: tuple[str, int]) -> None:
        self.key = key
        self.visitor: VisitorSide | None = None
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.answer: AnswerHead | None = None
        self.used = 0
        self.since = 0.0
        self._buffer = b""
        self._body = Body(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def begin(self, visitor: VisitorSide) -> None:
        self.visitor, self.answer, self._buffer = visitor, None, b""
        self.used += 1

    def data_received(self, data: bytes) -> None:
        visitor = self.visitor
        if visitor is None:
            # Data without a request has no known meaning, so the connection is not used again.
            self.transport.abort()
            return
        visitor.seen = time.monotonic()
        if visitor.stage is Stage.RAW:
            visitor.transport.write(data)
        elif visitor.frames is not None:
            visitor.frames.send(data)
        else:
            try:
                self._answer(visitor, data)
            except BadMessage as error:
                visitor.fail(Refusal(502, f"the task's server sent no proper answer: {error}"))

    def _answer(self, visitor: VisitorSide, data: bytes) -> None:
        while self.answer is None:
            data = self._buffer + data if self._buffer else data
            end = data.find(b"\r\n\r\n")
            if end < 0 or end > http1.HEAD_BYTES:
                if len(data) > http1.HEAD_BYTES:
                    raise BadMessage("its head is too large")
                self._buffer = data
                return
            self._buffer = b""
            answer = http1.read_answer(data[:end], visitor.request.method)
            data = data[end + 4 :]
            if answer.status == 101:
                self.answer = answer
                visitor.switch(answer, data)
                return
            if answer.status < 200:
                if answer.status == 100 and visitor.request.minor:
                    visitor.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                continue
            self.answer = answer
            self._body = Body(answer.length)
            visitor.send_head(answer)
        answer = self.answer
        rest = b""
        if data and not self._body.is_whole:
            data, rest = self._body.take(data)
            if data:
                visitor.transport.write(http1.chunk(data) if visitor.chunks else data)
        elif data:
            rest = data
        if rest:
            # Data beyond the answer is an error, or a trap for the next visitor.
            answer.keeps_alive = False
        if self._body.is_whole:
            self._end(visitor, answer)

    def _end(self, visitor: VisitorSide, answer: AnswerHead) -> None:
        keeps = answer.keeps_alive and visitor.is_sent
        self.visitor = None
        if not keeps:
            self.transport.abort()
        visitor.answered(self if keeps else None)

    def eof_received(self) -> bool:
        visitor = self.visitor
        if visitor is not None and visitor.frames is not None:
            visitor.frames.end()
            return True
        if visitor is not None and visitor.stage is Stage.RAW and visitor.transport.can_write_eof():
            visitor.transport.write_eof()
            return True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        visitor, self.visitor = self.visitor, None
        if visitor is None:
            return
        if visitor.stage in (Stage.RAW, Stage.TUNNEL):
            if visitor.frames is not None:
                visitor.frames.end(NORMAL if error is None else CUT_OFF)
            visitor.transport.close()
        elif self.answer is None:
            visitor.lost(self, nothing_came=not self._buffer)
        elif self.answer.length == http1.UNTIL_CLOSE and error is None:
            visitor.answered(None)
        else:
            # Half an answer must not look like a whole one.
            visitor.transport.abort()

    def pause_writing(self) -> None:
        if self.visitor is not None:
            self.visitor.pause()

    def resume_writing(self) -> None:
        if self.visitor is not None:
            self.visitor.resume()


async def connect(route: Route) -> TaskConnection | Refusal:
    """A new connection to the port, through its gate if it has one."""
    where = (route.address, route.port)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            if route.gate:
                sock = await gates.connect(*where, bytes.fromhex(route.gate))
                _, task = await loop.create_connection(lambda: TaskConnection(where), sock=sock)
            else:
                _, task = await loop.create_connection(lambda: TaskConnection(where), *where)
    except (OSError, TimeoutError) as error:
        away = "the task's server does not answer: it has ended, or is busy"
        if route.gate and not isinstance(error, gates.Refused):
            away = (
                "the service does not reach the task's machine: the network between them is cut, or a"
                " firewall drops connections"
            )
        return Refusal(502, away, again=True)
    if route.gate:
        gates.notice_cuts(task.transport, gates.CUT_S)
    return task
