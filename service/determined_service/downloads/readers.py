"""The processes that read checkpoint files for the service: :class:`Readers`.

Each is a :mod:`~determined_service.downloads.reader` and serves one download at a time. Its data goes through
a pipe, and no faster than the client takes it, so neither process holds more than a MiB or two of a file of
any size.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson

from determined_service.base.refusals import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    Unavailable,
)

logger = logging.getLogger(__name__)

AT_ONCE = 8
"""Downloads that one service process serves at the same time; each is a process."""
OF_ONE_USER = 4
WAIT_S = 20.0
"""A download waits so long for its turn."""
STORAGE_S = 120.0
"""A storage that gives nothing for so long is given up."""
IDLE_S = 30.0
"""A process without work ends after that; the next download starts another one, in 0.2 s."""
_HEAD = 5
_BUFFER = 1 << 18
_COMMAND = (sys.executable, "-P", "-m", "determined_service.downloads.reader")
_KINDS = {kind.status: kind for kind in (BadRequest, Conflict, Forbidden, NotFound)}

Question = Mapping[str, Any]


class Broken(Exception):
    """The answer ends in the middle."""


class Reading:
    """One answer: :meth:`pieces`, then :meth:`close` in any case."""

    def __init__(self, readers: Readers, process: Process, user: int) -> None:
        self._readers, self._process, self._user = readers, process, user
        self._first: bytes | None = None
        self._at_end = self._closed = False

    async def begin(self, question: Question) -> None:
        """Waits until there is something to read. Raises ApiError: the answer is no, or there is none."""
        assert self._process.stdin is not None
        raw = orjson.dumps(question)
        try:
            self._process.stdin.write(len(raw).to_bytes(4, "big") + raw)
            await self._process.stdin.drain()
            self._first = await self._next()
        except (OSError, EOFError, TimeoutError) as error:
            logger.warning("no checkpoint files from the process that reads them: %r", error)
            raise Unavailable("the checkpoint storage does not answer; try again") from error

    async def pieces(self) -> AsyncIterator[bytes]:
        """The data. Raises Broken when it does not come to its end."""
        try:
            piece = self._first
            while piece is not None:
                yield piece
                piece = await self._next()
        except (ApiError, OSError, EOFError, TimeoutError) as error:
            raise Broken(str(error) or type(error).__name__) from error

    async def _next(self) -> bytes | None:
        """The next piece; None at the end."""
        source = self._process.stdout
        assert source is not None
        async with asyncio.timeout(STORAGE_S):
            head = await source.readexactly(_HEAD)
            data = await source.readexactly(int.from_bytes(head[1:], "big"))
        if head[:1] == b"D":
            return data
        self._at_end = True
        if head[:1] == b"X":
            found = orjson.loads(data)
            raise _KINDS.get(found["status"], Conflict)(found["message"])
        return None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._readers.take_back(self._process, self._user, usable=self._at_end)


class Readers:
    """Starts the processes, and says whose turn it is."""

    def __init__(self) -> None:
        self._idle: list[tuple[Process, asyncio.TimerHandle]] = []
        self._busy: set[Process] = set()
        self._of_user: Counter[int] = Counter()
        self._turn = asyncio.Condition()
        self._ended = False

    async def read(self, question: Question, user: int) -> Reading:
        """The answer to ``question`` (:func:`~determined_service.downloads.reader.answer`), which has begun.

        Raises ApiError; Unavailable when ``user``, or everybody together, downloads too much already.
        """
        try:
            async with asyncio.timeout(WAIT_S), self._turn:
                await self._turn.wait_for(lambda: self._is_free(user))
                self._of_user[user] += 1
        except TimeoutError:
            raise Unavailable(
                f"{sum(self._of_user.values())} downloads of checkpoints run, {self._of_user[user]} of them "
                f"yours; the service serves {AT_ONCE} at once, and {OF_ONE_USER} of one user: try again"
            ) from None
        process = None
        try:
            process = await self._process()
            reading = Reading(self, process, user)
        except BaseException:
            self.take_back(process, user, usable=False)
            raise
        try:
            await reading.begin(question)
        except BaseException:
            reading.close()
            raise
        return reading

    def _is_free(self, user: int) -> bool:
        return self._of_user[user] < OF_ONE_USER and sum(self._of_user.values()) < AT_ONCE

    async def _process(self) -> Process:
        if self._ended:
            raise Unavailable("the service is about to end; try again")
        while self._idle:
            process, timer = self._idle.pop()
            timer.cancel()
            if process.returncode is None:
                break
        else:
            process = await asyncio.create_subprocess_exec(
                *_COMMAND, stdin=PIPE, stdout=PIPE, limit=_BUFFER
            )
        self._busy.add(process)
        return process

    def take_back(self, process: Process | None, user: int, *, usable: bool) -> None:
        """The turn has ended. ``usable``: the process has sent its whole answer."""
        if process is not None:
            self._busy.discard(process)
            if usable and process.returncode is None and not self._ended:
                loop = asyncio.get_running_loop()
                timer = loop.call_later(IDLE_S, self._end_idle, process)
                self._idle.append((process, timer))
            else:
                _kill(process)
        self._of_user[user] -= 1
        if not self._of_user[user]:
            del self._of_user[user]
        self._wake = asyncio.ensure_future(self._notify())

    async def _notify(self) -> None:
        async with self._turn:
            self._turn.notify_all()

    def _end_idle(self, process: Process) -> None:
        self._idle = [one for one in self._idle if one[0] is not process]
        _kill(process)

    def end(self) -> None:
        """Break off running downloads: clients go on with the next service process. May be repeated."""
        self._ended = True
        for process, timer in self._idle:
            timer.cancel()
            _kill(process)
        self._idle = []
        for process in self._busy:
            _kill(process)

    async def close(self) -> None:
        left = [*self._busy, *(process for process, _ in self._idle)]
        self.end()
        for process in left:
            await process.wait()


def _kill(process: Process) -> None:
    # With its pipes: one that is full of what nobody takes any more would stay open. `Process` has no
    # method for that.
    process._transport.close()  # type: ignore[attr-defined]
