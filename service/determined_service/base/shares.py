"""Limits the share of one user in common resources: connections, threads, requests, bytes of answers.

The sender is named once, where the token is looked up (:data:`ASKER`), and found again wherever the request
goes on. The service's own work has no name, and no limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from determined_service.base.refusals import TooManyRequests, Unavailable

ASKER: ContextVar[str | None] = ContextVar("asker", default=None)
"""The user in whose name the work of this task is done; None: the service itself, agents and flows."""
COUNTED = "determined.asker"
"""In an ASGI scope: the name under which :class:`Requests` has counted the request."""
_HELD: ContextVar[tuple[Share, ...]] = ContextVar("held", default=())


class Share:
    """At most ``most`` of something at once for each asker; more of one asker's work waits in line, and the
    work of others passes it.

    A holder of a place needs no second place: eight holders that wait for a ninth would wait for ever. With
    one thread behind it and ``most`` = 1, that thread's line holds one piece of work of each asker, so all
    get their turn.
    """

    def __init__(self, most: int, what: str, *, waiting: int) -> None:
        self._most, self._what, self._waiting = most, what, waiting
        self._of: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Raises TooManyRequests when too much of the asker's work waits already."""
        asker, inside = ASKER.get(), _HELD.get()
        if asker is None or self in inside:
            yield
            return
        place, held = self._of.get(asker) or (asyncio.Semaphore(self._most), 0)
        if held >= self._most + self._waiting:
            raise TooManyRequests(
                f"{held} of your requests wait for {self._what}, which is the most: wait until some have "
                "been answered, and try again"
            )
        self._of[asker] = place, held + 1
        try:
            async with place:
                token = _HELD.set((*inside, self))
                try:
                    yield
                finally:
                    _HELD.reset(token)
        finally:
            place, held = self._of[asker]
            if held == 1:
                del self._of[asker]
            else:
                self._of[asker] = place, held - 1


class Requests:
    """Limits the number of one user's requests under way."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, int] = {}

    def begin(self, asker: str) -> None:
        """Raises TooManyRequests."""
        held = self._of.get(asker, 0)
        if held >= self._most:
            raise TooManyRequests(
                f"{held} of your requests are under way, which is the most: wait until some have been "
                "answered, and try again"
            )
        self._of[asker] = held + 1

    def end(self, asker: str) -> None:
        """Each :meth:`begin` has one."""
        held = self._of[asker] - 1
        if held:
            self._of[asker] = held
        else:
            del self._of[asker]


class Sending(Protocol):
    """An answer on its way to a client."""

    def give_up(self) -> None:
        """End it: the client is too slow while others wait."""


SENDING: ContextVar[Sending | None] = ContextVar("sending", default=None)
"""The answer that the work of this task is for; None: none that could be given up."""

MADE_BYTES = 256 * 1024
UNCOUNTED_BYTES = 128 * 1024
"""Smaller pieces wait for nothing: there can be no more of them than requests."""
LEAST_S, LEAST_BYTES_PER_S = 10.0, 512 * 1024
"""While others wait, a piece is taken within the former and its bytes by the latter."""
LOOK_S = 1.0
REMEMBER_S = 300.0
"""Each answer that was given up halves the time for its asker's next pieces, until so long after the last
one: askers who begin again and again do not hold up others each time."""


@dataclass(eq=False)
class _Piece:
    """``due``: the time by which it must be taken while others wait."""

    asker: str
    sending: Sending | None
    due: float


@dataclass
class _Lost:
    """Answers of one asker that were given up, until ``until``."""

    count: int
    until: float


class InFlight:
    """Bytes of answers that are being read, made and sent: at most ``of_all``, and ``of_one`` of an asker.

    A larger answer takes the whole share, and waits until it is free. A client may take its time over a piece
    as long as nobody waits; where somebody does, the answer is given up whose piece is most overdue.
    """

    def __init__(self, of_all: int, of_one: int, *, patience_s: float) -> None:
        self._of_all, self._of_one, self._patience_s = of_all, of_one, patience_s
        self._held = 0
        self._of: dict[str, int] = {}
        self._freed = asyncio.Condition()
        self._pieces: set[_Piece] = set()
        self._lost: dict[str, _Lost] = {}
        self._turn = asyncio.Lock()

    async def made(self, steps: Iterator[bytes]) -> AsyncIterator[bytes]:
        """The bytes of an answer in pieces of about ``MADE_BYTES``. Of all answers one at a time makes a
        step, and after each the event loop does other work, whatever number of answers there is."""
        parts: list[bytes] = []
        size = 0
        while True:
            async with self._turn:
                part = next(steps, None)
                await asyncio.sleep(0)
            if part is not None:
                parts.append(part)
                size += len(part)
            if size >= MADE_BYTES or (part is None and size):
                yield b"".join(parts)
                parts, size = [], 0
            if part is None:
                return

    @contextlib.asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Wait for room for the answer. Raises Unavailable if the wait takes too long."""
        if size <= UNCOUNTED_BYTES:
            yield
            return
        asker = ASKER.get() or ""
        size = min(size, self._of_one)
        async with self._freed:
            try:
                async with asyncio.timeout(self._patience_s):
                    while not self._fits(asker, size):
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(LOOK_S):
                                await self._freed.wait()
                        self._hurry(asker, size)
            except TimeoutError:
                raise Unavailable(
                    "the service is busy with large answers that are slowly read: try again in a minute, "
                    "or ask for less at once"
                ) from None
            self._add(asker, size)
        piece = _Piece(asker, SENDING.get(), _now() + self._time_for(asker, size))
        self._pieces.add(piece)
        try:
            yield
        finally:
            self._pieces.discard(piece)
            self._add(asker, -size)
            async with self._freed:
                self._freed.notify_all()

    def _hurry(self, asker: str, size: int) -> None:
        """Gives up the answer that is most overdue, unless it is the asker's own ones that fill its share."""
        if self._held + size <= self._of_all or self._of.get(asker, 0) + size > self._of_one:
            return
        slow = min(
            (one for one in self._pieces if one.sending), key=lambda one: one.due, default=None
        )
        if slow is not None and slow.sending and slow.due <= _now():
            slow.sending.give_up()
            slow.sending = None
            self._note_lost(slow.asker)

    def _time_for(self, asker: str, size: int) -> float:
        """Seconds in which the asker takes a piece while others wait."""
        lost = self._lost.get(asker)
        count = lost.count if lost is not None and lost.until > _now() else 0
        return (LEAST_S + size / LEAST_BYTES_PER_S) / 2**count

    def _note_lost(self, asker: str) -> None:
        now = _now()
        self._lost = {name: one for name, one in self._lost.items() if one.until > now}
        lost = self._lost.setdefault(asker, _Lost(0, now))
        # After ten the time is less than that between two looks.
        lost.count, lost.until = min(lost.count + 1, 10), now + REMEMBER_S

    def _fits(self, asker: str, size: int) -> bool:
        return self._held + size <= self._of_all and self._of.get(asker, 0) + size <= self._of_one

    def _add(self, asker: str, size: int) -> None:
        self._held += size
        left = self._of.get(asker, 0) + size
        if left:
            self._of[asker] = left
        else:
            self._of.pop(asker, None)


def _now() -> float:
    return asyncio.get_running_loop().time()
