"""Searches lines for patterns in a separate process: :class:`PatternSearch`, :func:`check`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

import orjson

from determined.common.wire import limits
from determined_service.ingest.log_patterns import literal

logger = logging.getLogger(__name__)

PATTERN_S = limits.POLICY_S
BATCH_S = 10.0
"""Seconds after which the patterns of a batch get :data:`HURRIED_S` each."""
HURRIED_S = 0.25
ANSWER_S = 60.0
"""Seconds to wait for an answer, however busy the machine is."""
PIECE_CHARS = 256 * limits.KIB
"""Lines are handed over in pieces of about this size, so that nobody waits for their JSON."""
REMEMBERED = 4096

_COMMAND = (sys.executable, "-P", "-m", "determined_service.ingest.pattern_process")


def _question(patterns: Sequence[tuple[str, float]], lines: Sequence[str]) -> bytes:
    question = {"patterns": patterns, "lines": lines}
    try:
        raw = orjson.dumps(question)
    except TypeError:  # half of a surrogate pair
        clean = [line.encode("utf-8", "backslashreplace").decode() for line in lines]
        raw = orjson.dumps(question | {"lines": clean})
    return len(raw).to_bytes(4, "big") + raw


def check(patterns: Sequence[str]) -> dict[str, str]:
    """The reasons why patterns cannot be used, by pattern. Waits, so call it in a thread.

    To read a large expression takes a third of a second, in which no thread of the process could run.
    """
    wanted = [pattern for pattern in patterns if literal(pattern) is None]
    if not wanted:
        return {}
    question = _question([(pattern, PATTERN_S) for pattern in wanted], [])
    took_too_long = True
    try:
        done = subprocess.run(_COMMAND, input=question, capture_output=True, timeout=BATCH_S)
        printed, took_too_long = done.stdout, done.returncode == -signal.SIGVTALRM
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
    answers = [orjson.loads(line) for line in printed.splitlines()]
    problems = {
        pattern: answer
        for pattern, answer in zip(wanted, answers, strict=False)
        if isinstance(answer, str)
    }
    if len(answers) < len(wanted):
        if not took_too_long:
            raise RuntimeError(f"the process that reads patterns has died: {done.stderr[-500:]!r}")
        slow = wanted[len(answers)]
        problems[slow] = f"{slow!r} cannot be used on logs: it takes too long to read it"
    return problems


class TooSlow(Exception):
    """The pattern took more than its time."""


class PatternSearch:
    """One process, started when it is needed, for one batch of lines after the other.

    It remembers patterns that took too long, and does not look for them again.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._slow: OrderedDict[str, None] = OrderedDict()

    def is_slow(self, pattern: str) -> bool:
        """True if the pattern took too long and is not searched for any more."""
        return pattern in self._slow

    async def find(self, patterns: Iterable[str], lines: Sequence[str]) -> dict[str, int]:
        """Of the patterns that match, the index of the first line that does."""
        async with self._lock:
            found: dict[str, int] = {}
            deadline = time.monotonic() + BATCH_S
            wanted = [pattern for pattern in dict.fromkeys(patterns) if pattern not in self._slow]
            for first, piece in _pieces(lines):
                open_ones = [one for one in wanted if one not in found and one not in self._slow]
                for pattern, index in (await self._look(open_ones, piece, deadline)).items():
                    found[pattern] = first + index
            return found

    async def _look(
        self, patterns: list[str], lines: Sequence[str], deadline: float
    ) -> dict[str, int]:
        found: dict[str, int] = {}
        left = patterns
        deaths = 0
        while left:
            seconds = PATTERN_S if time.monotonic() < deadline else HURRIED_S
            answered = 0
            try:
                async for answer in self._ask([(one, seconds) for one in left], lines):
                    if isinstance(answer, int):
                        found[left[answered]] = answer
                    answered += 1
            except TooSlow:
                self._remember(left[answered])
                answered += 1
            except (OSError, TimeoutError, EOFError) as error:
                # Somebody may have killed it, even before this batch.
                deaths += 1
                if deaths > 1 or isinstance(error, TimeoutError):
                    logger.warning("patterns were not looked for in some log lines: %r", error)
                    return found
            left = left[answered:]
        return found

    def _remember(self, pattern: str) -> None:
        self._slow[pattern] = None
        while len(self._slow) > REMEMBERED:
            self._slow.popitem(last=False)

    async def _ask(
        self, patterns: list[tuple[str, float]], lines: Sequence[str]
    ) -> AsyncIterator[int | str | None]:
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        whole = False
        try:
            process.stdin.write(_question(patterns, lines))
            with contextlib.suppress(ConnectionError):  # it has ended: below it is said why
                await process.stdin.drain()
            for _ in patterns:
                async with asyncio.timeout(ANSWER_S):
                    line = await process.stdout.readline()
                if not line:
                    async with asyncio.timeout(ANSWER_S):
                        code = await process.wait()
                    if code == -signal.SIGVTALRM:
                        raise TooSlow
                    raise EOFError(f"the process that looks for patterns ended with {code}")
                yield orjson.loads(line)
            whole = True
        finally:
            # The rest of this answer must not be read as the next question's answer.
            if not whole:
                await self.close()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *_COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        return self._process

    async def close(self) -> None:
        """Ends the process; the next search starts another."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _pieces(lines: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Parts of ``lines``, each with the index of its first line."""
    first = size = 0
    for index, line in enumerate(lines):
        size += len(line)
        if size >= PIECE_CHARS:
            yield first, lines[first : index + 1]
            first, size = index + 1, 0
    if first < len(lines):
        yield first, lines[first:]
