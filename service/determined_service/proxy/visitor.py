"""A visitor's connection: asyncio's protocol, without a coroutine for each.

A connection carries requests one after the other. Bytes are passed on as they come, and no more is read from
one side than the other takes. :class:`ProxyState` decides about requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, Protocol, cast

from determined_service.proxy import answers, arrivals, gates, http1, passing, task_connection
from determined_service.proxy.answers import Refusal
from determined_service.proxy.arrivals import (
    Arrival,
    ForTunnel,
    Onward,
    OwnAddresses,
    Redirect,
    TerminalAsked,
)
from determined_service.proxy.entering import TicketShown
from determined_service.proxy.http1 import AnswerHead, BadMessage, Body, RequestHead
from determined_service.proxy.names import Key
from determined_service.proxy.questions import Ask, Route
from determined_service.proxy.task_connection import Stage, TaskConnection
from determined_service.proxy.tunnel_frames import TerminalFrames, TunnelFrames
from determined_service.proxy.visitor_stream import VisitorStream

LAST_WORDS_S = 5.0


class ProxyState(Protocol):
    """The part of the proxy's process that connections use."""

    own: OwnAddresses

    def known(self, ask: Ask) -> Route | Refusal | None: ...
    def decide(self, ask: Ask) -> Awaitable[Route | Refusal]: ...
    def enter(self, key: Key, ticket: str, login: str | None) -> Awaitable[str | Refusal]: ...
    def admit(self, visitor: Visitor, route: Route) -> Refusal | None: ...
    def leave(self, visitor: Visitor) -> None: ...
    def idle(self, route: Route) -> TaskConnection | None: ...
    def keep(self, task: TaskConnection) -> None: ...
    def give_back(self, visitor: Visitor, data: bytes) -> bool: ...


class Visitor(VisitorStream):
    """A visitor's connection, and the request on it."""

    __slots__ = (
        *("_arrival", "_body", "_first", "_in_trouble", "_is_over", "_onward", "_proxy"),
        *("_retried", "_work", "checked", "chunks", "is_sent", "request", "route"),
    )

    def __init__(self, proxy: ProxyState, first: bytes = b"") -> None:
        """``first``: what was read of it already."""
        super().__init__()
        self._proxy = proxy
        self._first = first
        self.request: RequestHead = cast("RequestHead", None)
        self.route: Route | None = None
        self.checked = self.seen
        self.is_sent = True
        """The request's body is with the task."""
        self.chunks = False
        self._arrival: Arrival | None = None
        self._body = Body(0)
        self._onward: Onward = cast("Onward", None)
        self._retried = False
        self._is_over = False
        self._in_trouble = False
        self._work: asyncio.Task[None] | None = None

    @property
    def ask(self) -> Ask | None:
        """The question about the present or last request, if it came so far."""
        return None if self._arrival is None else self._arrival.ask

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        first, self._first = self._first, b""
        if first:
            self.data_received(first)

    def data_received(self, data: bytes) -> None:
        self.seen = time.monotonic()
        stage = self.stage
        if stage is Stage.RAW:
            assert self.task is not None
            self.task.transport.write(data)
        elif stage is Stage.TUNNEL:
            assert self.frames is not None
            self.frames.receive(data)
        elif stage is Stage.HEAD:
            self._head(self._held + data if self._held else data)
        elif stage is Stage.PASSING and not self.is_sent:
            self._send_body(data)
        elif not self._in_trouble:
            self.hold(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.stage = Stage.CLOSED
        if self._work is not None:
            self._work.cancel()
        self.drop_task()
        self._release()
        self._proxy.leave(self)

    # a request

    def _head(self, data: bytes) -> None:
        end = data.find(b"\r\n\r\n")
        if end < 0 or end > http1.HEAD_BYTES:
            if len(data) > http1.HEAD_BYTES:
                self._answer_bad(BadMessage("the head of the request is too large", 431))
            else:
                self._held = data
            return
        self._held = b""
        try:
            request = http1.read_request(data[:end])
        except BadMessage as error:
            self._answer_bad(error)
            return
        peer = (self.transport.get_extra_info("peername") or ("",))[0]
        arrival = arrivals.read(request, self._proxy.own, str(peer))
        if arrival is None:
            # The service's own: it gets the connection back.
            if not self._proxy.give_back(self, data):
                self._answer_bad(BadMessage("the service does not answer", 503))
            return
        self.request = request
        self._held = data[end + 4 :]
        self.is_sent = request.length == 0
        self._body = Body(request.length)
        self._retried = False
        self.stage = Stage.ASKING
        if isinstance(arrival, Refusal):
            self.fail(arrival)
        elif isinstance(arrival, Redirect):
            self._redirect(arrival.where)
        elif isinstance(arrival, TicketShown):
            self._begin_work(self._enter(arrival))
        elif isinstance(arrival, TerminalAsked):
            self._begin_work(self._enter_terminal(arrival))
        else:
            self._arrival = arrival
            known = self._proxy.known(arrival.ask)
            if known is None:
                self._begin_work(self._wait_for_decision(arrival))
            else:
                self._decided(arrival, known)

    async def _wait_for_decision(self, arrival: Arrival) -> None:
        decided = await self._proxy.decide(arrival.ask)
        if self.stage is Stage.ASKING:
            self._work = None
            self._decided(arrival, decided)

    def _decided(self, arrival: Arrival, decided: Route | Refusal) -> None:
        if isinstance(decided, Refusal):
            if decided.status == 401 and answers.is_bare_tunnel(self.request):
                self._begin_work(self._tell_ssh())
                return
            self.fail(decided)
            return
        refusal = self._proxy.admit(self, decided)
        if refusal is not None:
            self.fail(refusal)
            return
        self.route = decided
        self.checked = time.monotonic()
        onward = arrivals.onward(self.request, arrival, decided)
        if isinstance(onward, Refusal):
            self.fail(onward)
        elif isinstance(onward, Redirect):
            self._redirect(onward.where)
        elif isinstance(onward, ForTunnel):
            self._begin_work(self._tunnel(decided, onward.subprotocol))
        else:
            self._onward = onward
            task = None if self.request.upgrade else self._proxy.idle(decided)
            if task is not None:
                self._send(task)
            else:
                self._begin_work(self._connect(decided))

    async def _connect(self, route: Route) -> None:
        task = await self._connected(route)
        if task is not None:
            self._send(task)

    async def _connected(self, route: Route) -> TaskConnection | None:
        task = await task_connection.connect(route)
        self._work = None
        if isinstance(task, Refusal):
            self.fail(task)
            return None
        if self.stage is not Stage.ASKING:
            task.transport.abort()
            return None
        return task

    def _send(self, task: TaskConnection) -> None:
        self.task = task
        task.begin(self)
        self.stage = Stage.PASSING
        onward = self._onward
        task.transport.write(passing.request_head(self.request, onward.target, onward.way))
        self.resume()
        if self._held and not self.is_sent:
            self._send_body(self.take_held())

    def _send_body(self, data: bytes) -> None:
        assert self.task is not None
        try:
            part, rest = self._body.take(data)
        except BadMessage as error:
            self._answer_bad(error)
            return
        if self._body.chunked:
            part = http1.chunk(part) if part else b""
            if self._body.is_whole:
                part += http1.LAST_CHUNK
        if part:
            self.task.transport.write(part)
        if self._body.is_whole:
            self.is_sent = True
            if rest:
                self.hold(rest)

    # the answer

    def _keeps_alive(self) -> bool:
        return self.request.keeps_alive and self.is_sent and not self._is_over

    def send_head(self, answer: AnswerHead) -> None:
        keeps = self.request.keeps_alive and not self._is_over
        self.chunks = answer.length < 0 and self.request.minor == 1
        if answer.length < 0 and not self.chunks:
            keeps = False
        self._is_over = not keeps
        self.transport.write(passing.answer_head(answer, self.request, self._onward.way, keeps))

    def answered(self, task: TaskConnection | None) -> None:
        """The answer is with the visitor. ``task``: the connection, if it may be used again."""
        if self.chunks:
            self.transport.write(http1.LAST_CHUNK)
            self.chunks = False
        self.task = None
        if task is not None:
            if self.transport.get_write_buffer_size():
                # It may have been told to wait for this visitor.
                task.transport.resume_reading()
            self._proxy.keep(task)
        self._next()

    def _next(self) -> None:
        self._release()
        if self._is_over or not self.is_sent:
            # What is left of a body that nobody wants is not read for long.
            self._finish()
            return
        self.stage = Stage.HEAD
        self.resume()
        if self._held:
            asyncio.get_running_loop().call_soon(self._again, self.take_held())

    def _again(self, held: bytes) -> None:
        if self.stage is Stage.HEAD:
            self._head(held + self.take_held())

    def _finish(self) -> None:
        self._in_trouble = True
        self.stage = Stage.ASKING
        self._held = b""
        self.resume()
        self.transport.close()

    def _release(self) -> None:
        if self.route is not None:
            self._proxy.leave(self)
            self.route = None

    def _redirect(self, where: str, more: str = "") -> None:
        self._respond(answers.redirect(where, self.request, self._keeps_alive(), more))

    def _respond(self, whole: bytes) -> None:
        keeps = self._keeps_alive()
        self.transport.write(whole)
        self._is_over = not keeps
        self._next()

    def fail(self, refusal: Refusal) -> None:
        """The proxy answers itself, or ends the connection where an answer has begun."""
        begun = self.drop_task()
        if self.stage is Stage.CLOSED:
            return
        if begun or self.stage in (Stage.RAW, Stage.TUNNEL):
            self.transport.abort()
            return
        self._respond(answers.refuse(refusal, self.request, self._keeps_alive()))

    def lost(self, task: TaskConnection, nothing_came: bool) -> None:
        """The task's connection has ended before an answer."""
        self.task = None
        # One that was kept may have ended while the request was on its way: that it was not read is certain
        # only of what may be asked twice.
        if (
            nothing_came
            and task.used > 1
            and not self._retried
            and self.request.length == 0
            and self.request.method in (b"GET", b"HEAD", b"OPTIONS")
            and self.route is not None
        ):
            self._retried = True
            self.stage = Stage.ASKING
            self._begin_work(self._connect(self.route))
            return
        self.fail(Refusal(502, "the task's server ended the connection without an answer"))

    def _answer_bad(self, error: BadMessage) -> None:
        self._is_over = True
        if self.drop_task():
            self.transport.abort()
            return
        self.transport.write(answers.refuse(Refusal(error.status, str(error)), None, False))
        self._finish()

    # websockets and tunnels

    def switch(self, answer: AnswerHead, data: bytes) -> None:
        """The task has taken the websocket: from here on bytes are only passed on."""
        if not self.request.upgrade or answer.upgrade != b"websocket":
            self.fail(Refusal(502, "the task's server changes to a protocol that nobody asked for"))
            return
        self.transport.write(
            passing.answer_head(answer, self.request, self._onward.way, True) + data
        )
        self._outlive_cuts()
        self.stage = Stage.RAW
        self.resume()
        if self._held:
            assert self.task is not None
            self.task.transport.write(self.take_held())

    async def _tell_ssh(self) -> None:
        self._in_trouble = True
        self._held = b""
        self.transport.write(answers.tell_ssh(self.request))
        # An end at once could overtake the last bytes.
        await asyncio.sleep(LAST_WORDS_S)
        self.transport.close()

    def _outlive_cuts(self) -> None:
        """Keep a conversation alive over a short cut of the network."""
        if self.route is not None and self.route.gate and self.task is not None:
            gates.notice_cuts(self.task.transport, gates.TALK_CUT_S)

    async def _tunnel(self, route: Route, subprotocol: str | None) -> None:
        task = await self._connected(route)
        if task is None:
            return
        kind = TerminalFrames if subprotocol == passing.TERMINAL else TunnelFrames
        frames = kind.open(self.request, subprotocol, self.transport, task.transport)
        if isinstance(frames, Refusal):
            task.transport.abort()
            self.fail(frames)
            return
        if not frames.is_open:
            task.transport.abort()
            self._is_over = True
            self._next()
            return
        self.task, self.frames = task, frames
        task.begin(self)
        self._outlive_cuts()
        self.stage = Stage.TUNNEL
        self.resume()
        if self._held:
            frames.receive(self.take_held())

    # at a task's host name

    async def _enter(self, shown: TicketShown) -> None:
        cookie = await self._proxy.enter(shown.key, shown.ticket, None)
        if self.stage is not Stage.ASKING:
            return
        self._work = None
        if isinstance(cookie, Refusal):
            self.fail(cookie)
            return
        self._redirect(shown.next_path, shown.cookie_line(cookie))

    # at a door, from a page of the service's own

    async def _enter_terminal(self, asked: TerminalAsked) -> None:
        cookie = await self._proxy.enter(asked.key, asked.ticket, asked.login)
        if self.stage is not Stage.ASKING:
            return
        if isinstance(cookie, Refusal):
            self._work = None
            self.fail(cookie)
            return
        self._arrival = asked.arrival(cookie)
        await self._wait_for_decision(self._arrival)

    # the rest

    def _begin_work(self, work: Any) -> None:
        self._work = asyncio.get_running_loop().create_task(work)
