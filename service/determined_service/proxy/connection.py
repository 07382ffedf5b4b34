"""One visitor's connection, and the task's behind it: asyncio's protocols, without a coroutine for each.

A connection carries requests one after the other. Bytes are passed on as they come, and no more is read from
one side than the other takes. :class:`ProxyState` decides about requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import parse_qs, quote

from determined_service.base import hosts
from determined_service.base.trusted_proxies import TrustedProxies
from determined_service.proxy import answers, gates, http1, names, passing
from determined_service.proxy.answers import Refusal
from determined_service.proxy.http1 import Answer, BadMessage, Body, Request
from determined_service.proxy.names import Key
from determined_service.proxy.passing import Way

if TYPE_CHECKING:
    from websockets.server import ServerProtocol

ENTER = b"/.determined/enter"
"""At a task's host name: where a visitor comes with a ticket, and gets the login's cookie."""
HEAD_S = 30.0
IDLE_S = 75.0
"""Between two requests of a connection."""
QUIET_S = 3600.0
"""Within a request, a websocket or a tunnel: so long may both sides say nothing."""
CONNECT_S = 5.0
_NORMAL, _CUT_OFF = 1000, 1011
"""Close codes of a tunnel's websocket: the task's connection ended, or the tunnel was cut."""
LAST_WORDS_S = 5.0
MOST_HELD = 128 << 10
"""Bytes that a visitor may send before the present request is answered."""


@dataclass(frozen=True, slots=True)
class Route:
    """The target of a request. ``allocation_id``, ``user_id``: whose connections are counted together;
    ``gate``: the key of the gate there, in hex, if there is one."""

    address: str
    port: int
    tcp: bool
    keep_prefix: bool
    allocation_id: str
    user_id: int
    gate: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """The question to the service: may the holder of these credentials use this port?"""

    key: Key
    bearer: str
    cookies: tuple[str, ...]


class ProxyState(Protocol):
    """The part of the proxy's process that connections use."""

    own_host: str
    own_base: str
    trusted: TrustedProxies

    def known(self, ask: Ask) -> Route | Refusal | None: ...
    def decide(self, ask: Ask) -> Awaitable[Route | Refusal]: ...
    def enter(self, key: Key, ticket: str) -> Awaitable[str | Refusal]: ...
    def admit(self, visitor: Visitor, route: Route) -> Refusal | None: ...
    def leave(self, visitor: Visitor) -> None: ...
    def idle(self, route: Route) -> TaskConnection | None: ...
    def keep(self, task: TaskConnection) -> None: ...
    def give_back(self, visitor: Visitor, data: bytes) -> bool: ...


class _Is(Enum):
    HEAD = auto()  # waits for a request
    ASKING = auto()  # waits for the service, or for the connection to the task
    PASSING = auto()  # a request, or its answer, is on the way
    RAW = auto()  # a websocket
    TUNNEL = auto()  # bytes of a port, in a websocket
    CLOSED = auto()


class TaskConnection(asyncio.Protocol):
    """A connection to a task's port."""

    __slots__ = (
        "_body",
        "_buffer",
        "_loop",
        "answer",
        "key",
        "since",
        "transport",
        "used",
        "visitor",
    )

    def __init__(self, key: tuple[str, int]) -> None:
        self.key = key
        self.visitor: Visitor | None = None
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.answer: Answer | None = None
        self.used = 0
        self.since = 0.0
        self._buffer = b""
        self._body = Body(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def begin(self, visitor: Visitor) -> None:
        self.visitor, self.answer, self._buffer = visitor, None, b""
        self.used += 1

    def data_received(self, data: bytes) -> None:
        visitor = self.visitor
        if visitor is None:
            # Data without a request has no known meaning, so the connection is not used again.
            self.transport.abort()
            return
        visitor.seen = time.monotonic()
        if visitor.state is _Is.RAW:
            visitor.transport.write(data)
        elif visitor.state is _Is.TUNNEL:
            visitor.send_frame(data)
        else:
            try:
                self._answer(visitor, data)
            except BadMessage as error:
                visitor.fail(Refusal(502, f"the task's server sent no proper answer: {error}"))

    def _answer(self, visitor: Visitor, data: bytes) -> None:
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

    def _end(self, visitor: Visitor, answer: Answer) -> None:
        keeps = answer.keeps_alive and visitor.is_sent
        self.visitor = None
        if not keeps:
            self.transport.abort()
        visitor.answered(self if keeps else None)

    def eof_received(self) -> bool:
        visitor = self.visitor
        if visitor is not None and visitor.state is _Is.TUNNEL:
            visitor.end_frames()
            return True
        if visitor is not None and visitor.state is _Is.RAW and visitor.transport.can_write_eof():
            visitor.transport.write_eof()
            return True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        visitor, self.visitor = self.visitor, None
        if visitor is None:
            return
        if visitor.state in (_Is.RAW, _Is.TUNNEL):
            if visitor.state is _Is.TUNNEL:
                visitor.end_frames(_NORMAL if error is None else _CUT_OFF)
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


class Visitor(asyncio.Protocol):
    """A visitor's connection."""

    __slots__ = (
        *(
            "_below",
            "_body",
            "_proxy",
            "_first",
            "_held",
            "_in_trouble",
            "_is_over",
            "_paused",
            "_retried",
            "_way",
            "_work",
        ),
        *("ask", "checked", "chunks", "frames", "is_sent", "request", "route", "seen", "state"),
        *("task", "transport"),
    )

    def __init__(self, proxy: ProxyState, first: bytes = b"") -> None:
        """``first``: what was read of it already."""
        self._proxy = proxy
        self._first = first
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.state = _Is.HEAD
        self.request: Request = cast("Request", None)
        self.route: Route | None = None
        self.ask: Ask | None = None
        self.task: TaskConnection | None = None
        self.frames: ServerProtocol | None = None
        self.seen = self.checked = time.monotonic()
        self.is_sent = True
        """The request's body is with the task."""
        self.chunks = False
        self._held = b""
        self._below = b"/"
        self._body = Body(0)
        self._way = Way(False, b"", b"http", b"", False)
        self._paused = False
        self._retried = False
        self._is_over = False
        self._in_trouble = False
        self._work: asyncio.Task[None] | None = None

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        raw = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first, self._first = self._first, b""
        if first:
            self.data_received(first)

    def data_received(self, data: bytes) -> None:
        self.seen = time.monotonic()
        state = self.state
        if state is _Is.RAW:
            assert self.task is not None
            self.task.transport.write(data)
        elif state is _Is.TUNNEL:
            self._take_frames(data)
        elif state is _Is.HEAD:
            self._head(self._held + data if self._held else data)
        elif state is _Is.PASSING and not self.is_sent:
            self._send_body(data)
        elif not self._in_trouble:
            self._hold(data)

    def eof_received(self) -> bool:
        if self.state is _Is.RAW and self.task is not None and self.task.transport.can_write_eof():
            self.task.transport.write_eof()
            return True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.state = _Is.CLOSED
        if self._work is not None:
            self._work.cancel()
        task, self.task = self.task, None
        if task is not None:
            task.visitor = None
            task.transport.abort()
        self._release()
        self._proxy.leave(self)

    def pause_writing(self) -> None:
        if self.task is not None:
            self.task.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.task is not None:
            self.task.transport.resume_reading()

    # a request

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > MOST_HELD:
            self.pause()

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
        path, _, query = request.target.partition(b"?")
        label = self._label(request)
        found = names.of_path(path)
        if (label is None or label in hosts.PAGES) and not path.startswith(names.PREFIX):
            # The service's own: it gets the connection back.
            if not self._proxy.give_back(self, data):
                self._answer_bad(BadMessage("the service does not answer", 503))
            return
        self.request = request
        self._held = data[end + 4 :]
        self.is_sent = request.length == 0
        self._body = Body(request.length)
        self._retried = False
        self.state = _Is.ASKING
        key = found[0] if found else None
        if label is not None:
            key = names.of_label(label)
        if key is None:
            self.fail(
                Refusal(
                    404, "no task has this address: it is /proxy/<task> or /proxy/<task>:<port>"
                )
            )
            return
        peer = str((self.transport.get_extra_info("peername") or ("",))[0])
        scheme = b"http"
        if peer in self._proxy.trusted:
            given = request.get(b"x-forwarded-proto").lower()
            scheme = given if given in (b"http", b"https") else scheme
            before = request.get(b"x-forwarded-for")
            peer = f"{before.decode('latin-1')}, {peer}" if before else peer
        if label is not None and path == ENTER:
            self._begin_work(self._enter(key, query, scheme))
            return
        self._decide(key, label is not None, found, query, scheme, peer.encode("latin-1"))

    def _label(self, request: Request) -> str | None:
        """The first part of the host name, where it is a task's."""
        suffix = self._proxy.own_host
        if not suffix:
            return None
        name = request.host.partition(b":")[0].decode("latin-1")
        label, _, rest = name.partition(".")
        return label if rest == suffix else None

    def _decide(
        self,
        key: Key,
        own_host: bool,
        found: tuple[Key, bytes] | None,
        query: bytes,
        scheme: bytes,
        peer: bytes,
    ) -> None:
        request = self.request
        cookies, _ = passing.cookies(request.headers)
        kind, _, given = request.get(b"authorization").partition(b" ")
        bearer = ""
        if not (own_host and cookies) and kind.lower() == b"bearer":
            bearer = given.strip().decode("latin-1")
        if not bearer and not own_host:
            kind, _, given = request.get(b"grpc-metadata-x-allocation-token").partition(b" ")
            if kind.lower() == b"bearer":
                bearer = given.strip().decode("latin-1")
        if not own_host:
            cookies = []
            if request.get(b"service-worker"):
                self.fail(
                    Refusal(403, "a task's page has no service worker at the service's address")
                )
                return
            if not bearer and request.method in (b"GET", b"HEAD") and answers.wants_page(request):
                where = self._at_own_host(key)
                if where is not None:
                    self._respond(answers.redirect(where, request, self._keeps_alive()))
                    return
        elif cookies and passing.is_from_elsewhere(request, scheme):
            self.fail(
                Refusal(
                    403,
                    "this request comes from another site's page, which may not use your login here",
                )
            )
            return
        self._way = Way(own_host, key.path.encode(), scheme, peer, bool(bearer))
        self._below = request.target
        if found is not None and found[0] == key:
            rest = found[1]
            if (
                not rest
                and not own_host
                and not request.upgrade
                and request.method in (b"GET", b"HEAD")
            ):
                # Links of a page are read from the folder on.
                where = key.path + "/" + (f"?{query.decode('latin-1')}" if query else "")
                self._respond(answers.redirect(where, request, self._keeps_alive()))
                return
            self._below = (rest or b"/") + (b"?" + query if query else b"")
        self.ask = ask = Ask(key, bearer, tuple(cookies[:4]))
        known = self._proxy.known(ask)
        if known is None:
            self._begin_work(self._ask(ask))
        else:
            self._decided(known)

    async def _ask(self, ask: Ask) -> None:
        decided = await self._proxy.decide(ask)
        if self.state is _Is.ASKING:
            self._work = None
            self._decided(decided)

    def _at_own_host(self, key: Key) -> str | None:
        """The same address at the task's host name, for a browser."""
        base = names.own_address(key, self._proxy.own_host, self._proxy.own_base, self.request.host)
        return None if base is None else base + self.request.target.decode("latin-1")

    def _decided(self, decided: Route | Refusal) -> None:
        request, way = self.request, self._way
        assert self.ask is not None
        if isinstance(decided, Refusal):
            if decided.status == 401 and answers.is_bare_tunnel(request):
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
        wanted = [w.decode() for w in http1.words(request.headers, b"sec-websocket-protocol")]
        if request.upgrade and (decided.tcp or passing.TCP in wanted):
            self._begin_work(self._tunnel(decided, passing.TCP if passing.TCP in wanted else None))
            return
        if decided.tcp:
            self.fail(
                Refusal(
                    400,
                    "this port speaks no HTTP: reach it by a tunnel, "
                    f"python -m determined.cli.tunnel MASTER {self.ask.key}",
                )
            )
            return
        if decided.keep_prefix:
            if way.own_host and request.target == b"/":
                where = f"{self.ask.key.path}/"
                self._respond(answers.redirect(where, request, self._keeps_alive()))
                return
            way = self._way = replace(way, prefix=b"")
        elif way.own_host:
            way = self._way = replace(way, prefix=b"")
        task = None if request.upgrade else self._proxy.idle(decided)
        if task is not None:
            self._send(task)
        else:
            self._begin_work(self._connect(decided))

    async def _connect(self, route: Route) -> None:
        task = await self._connected(route)
        if task is not None:
            self._work = None
            self._send(task)

    async def _connected(self, route: Route) -> TaskConnection | None:
        loop = asyncio.get_running_loop()
        where = (route.address, route.port)
        try:
            async with asyncio.timeout(CONNECT_S):
                if route.gate:
                    sock = await gates.connect(*where, bytes.fromhex(route.gate))
                    _, task = await loop.create_connection(lambda: TaskConnection(where), sock=sock)
                else:
                    _, task = await loop.create_connection(lambda: TaskConnection(where), *where)
        except (OSError, TimeoutError) as error:
            self._work = None
            away = "the task's server does not answer: it has ended, or is busy"
            if route.gate and not isinstance(error, gates.Refused):
                away = (
                    "the service does not reach the task's machine: the network between them is cut, or a"
                    " firewall drops connections"
                )
            self.fail(Refusal(502, away, again=True))
            return None
        if route.gate:
            gates.notice_cuts(task.transport, gates.CUT_S)
        if self.state is not _Is.ASKING:
            task.transport.abort()
            return None
        return task

    def _send(self, task: TaskConnection) -> None:
        assert self.route is not None
        self.task = task
        task.begin(self)
        self.state = _Is.PASSING
        target = self.request.target if self.route.keep_prefix else self._below
        task.transport.write(passing.request_head(self.request, target, self._way))
        self.resume()
        if self._held and not self.is_sent:
            held, self._held = self._held, b""
            self._send_body(held)

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
                self._hold(rest)

    # the answer

    def _keeps_alive(self) -> bool:
        return self.request.keeps_alive and self.is_sent and not self._is_over

    def send_head(self, answer: Answer) -> None:
        keeps = self.request.keeps_alive and not self._is_over
        self.chunks = answer.length < 0 and self.request.minor == 1
        if answer.length < 0 and not self.chunks:
            keeps = False
        self._is_over = not keeps
        self.transport.write(passing.answer_head(answer, self.request, self._way, keeps))

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
        self.state = _Is.HEAD
        self.resume()
        if self._held:
            held, self._held = self._held, b""
            asyncio.get_running_loop().call_soon(self._again, held)

    def _again(self, held: bytes) -> None:
        if self.state is _Is.HEAD:
            held, self._held = held + self._held, b""
            self._head(held)

    def _finish(self) -> None:
        self._in_trouble = True
        self.state = _Is.ASKING
        self._held = b""
        self.resume()
        self.transport.close()

    def _release(self) -> None:
        if self.route is not None:
            self._proxy.leave(self)
            self.route = None

    def _refusal(self, refusal: Refusal) -> bytes:
        return answers.refuse(refusal, self.request, self._keeps_alive())

    def _respond(self, whole: bytes) -> None:
        keeps = self._keeps_alive()
        self.transport.write(whole)
        self._is_over = not keeps
        self._next()

    def fail(self, refusal: Refusal) -> None:
        """The proxy answers itself, or ends the connection where an answer has begun."""
        task, self.task = self.task, None
        begun = task is not None and task.answer is not None
        if task is not None:
            task.visitor = None
            task.transport.abort()
        if self.state is _Is.CLOSED:
            return
        if begun or self.state in (_Is.RAW, _Is.TUNNEL):
            self.transport.abort()
            return
        self._respond(self._refusal(refusal))

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
            and self.ask is not None
        ):
            self._retried = True
            self.state = _Is.ASKING
            self._begin_work(self._connect(self.route))
            return
        self.fail(Refusal(502, "the task's server ended the connection without an answer"))

    def _answer_bad(self, error: BadMessage) -> None:
        self._is_over = True
        task, self.task = self.task, None
        if task is not None:
            begun = task.answer is not None
            task.visitor = None
            task.transport.abort()
            if begun:
                self.transport.abort()
                return
        self.transport.write(answers.refuse(Refusal(error.status, str(error)), None, False))
        self._finish()

    # websockets and tunnels

    def switch(self, answer: Answer, data: bytes) -> None:
        """The task has taken the websocket: from here on bytes are only passed on."""
        if not self.request.upgrade or answer.upgrade != b"websocket":
            self.fail(Refusal(502, "the task's server changes to a protocol that nobody asked for"))
            return
        self.transport.write(passing.answer_head(answer, self.request, self._way, True) + data)
        self._outlive_cuts()
        self.state = _Is.RAW
        self.resume()
        if self._held:
            held, self._held = self._held, b""
            assert self.task is not None
            self.task.transport.write(held)

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
        from websockets.exceptions import InvalidHandshake
        from websockets.protocol import State
        from websockets.server import ServerProtocol
        from websockets.typing import Subprotocol

        task = await self._connected(route)
        if task is None:
            return
        self._work = None
        frames = ServerProtocol(
            subprotocols=[Subprotocol(subprotocol)] if subprotocol else None, max_size=4 << 20
        )
        # The library reads the request itself, and checks it in its own way.
        lines = [b"%b: %b\r\n" % item for item in self.request.headers]
        frames.receive_data(b"GET / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n")
        events = frames.events_received()
        try:
            if not events:
                raise InvalidHandshake("no request for a websocket")
            frames.send_response(frames.accept(cast("Any", events[0])))
        except (InvalidHandshake, ValueError) as error:
            task.transport.abort()
            self.fail(Refusal(400, f"no websocket: {error}"))
            return
        self.transport.write(b"".join(frames.data_to_send()))
        if frames.state is not State.OPEN:
            task.transport.abort()
            self._is_over = True
            self._next()
            return
        self.task, self.frames = task, frames
        task.begin(self)
        self._outlive_cuts()
        self.state = _Is.TUNNEL
        self.resume()
        if self._held:
            held, self._held = self._held, b""
            self._take_frames(held)

    def _take_frames(self, data: bytes) -> None:
        from websockets.frames import Frame, Opcode

        frames, task = self.frames, self.task
        assert frames is not None and task is not None
        frames.receive_data(data)
        for event in frames.events_received():
            if not isinstance(event, Frame):
                continue
            if event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
                if event.data:
                    task.transport.write(bytes(event.data))
                elif frames.subprotocol and not task.transport.is_closing():
                    # Our clients' way to say that nothing more will come.
                    task.transport.write_eof()
        self._flush_frames()

    def send_frame(self, data: bytes) -> None:
        """Bytes of the port."""
        from websockets.protocol import State

        assert self.frames is not None
        if self.frames.state is State.OPEN:
            self.frames.send_binary(data)
            self._flush_frames()

    def end_frames(self, code: int = _NORMAL) -> None:
        """The port says nothing more."""
        from websockets.protocol import State

        if self.frames is not None and self.frames.state is State.OPEN:
            self.frames.send_close(code)
            self._flush_frames()

    def _flush_frames(self) -> None:
        assert self.frames is not None
        for piece in self.frames.data_to_send():
            if piece:
                self.transport.write(piece)
            else:
                self.transport.close()

    # at a task's host name

    async def _enter(self, key: Key, query: bytes, scheme: bytes) -> None:
        given = parse_qs(query.decode("latin-1"))
        ticket = given.get("ticket", [""])[0]
        where = given.get("next", ["/"])[0]
        if not is_path(where):
            where = "/"
        cookie = await self._proxy.enter(key, ticket)
        if self.state is not _Is.ASKING:
            return
        self._work = None
        if isinstance(cookie, Refusal):
            self.fail(cookie)
            return
        name = passing.SECURE_COOKIE if scheme == b"https" else passing.COOKIE
        secure = "; Secure" if scheme == b"https" else ""
        more = f"Set-Cookie: {name.decode()}={cookie}; Path=/; HttpOnly; SameSite=Lax{secure}\r\n"
        where = quote(where, safe="/?&=%:;,@!$'()*+~-._#[]")
        self._respond(answers.redirect(where, self.request, self._keeps_alive(), more))

    # the rest

    def _begin_work(self, work: Any) -> None:
        self._work = asyncio.get_running_loop().create_task(work)

    def pause(self) -> None:
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def is_late(self, now: float) -> bool:
        """True if nothing was received for too long."""
        if self.state is _Is.HEAD:
            return now - self.seen > (HEAD_S if self._held else IDLE_S)
        return now - self.seen > QUIET_S


def is_path(where: str) -> bool:
    """True if the address leads to the same host name: in every browser's reading it must be a path."""
    return (
        where.startswith("/")
        and not where.startswith(("//", "/\\"))
        and all(" " < character < "\x7f" and character != "\\" for character in where)
    )
