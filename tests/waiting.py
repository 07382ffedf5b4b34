"""Waiting for what another process, thread or task brings about.

A test waits for an event, never for a number of seconds. The time limits here only end a test that would
otherwise hang: they are far above what a busy machine needs, and no test asserts them.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")

TIMEOUT_S = 240.0
SHORTEST_PAUSE_S = 0.01
LONG_PAUSE_S = 0.2
PATIENCE = 1 / 30
"""How much of the time that was waited already the next pause may take."""

_TRUE = object()


def until(
    what: str,
    check: Callable[[], T | None],
    timeout_s: float = TIMEOUT_S,
    *,
    equals: Any = _TRUE,
    show: Callable[[], object] | None = None,
) -> T:
    """The first answer of ``check`` that is true, or that equals ``equals`` where this is given.

    Args:
        what: the event that the test waits for; the failure names it.
        check: is called again and again. Its errors are not caught.
        timeout_s: how long to wait before the test fails with the last answer.
        equals: the answer to wait for.
        show: gives something more to look at after a time-out, for example logs.
    """
    wait = _Wait(what, timeout_s, equals, show)
    while not wait.is_over(found := check()):
        time.sleep(wait.pause())
    return cast(T, found)


async def until_async(
    what: str,
    check: Callable[[], Awaitable[T | None] | T | None],
    timeout_s: float = TIMEOUT_S,
    *,
    equals: Any = _TRUE,
    show: Callable[[], object] | None = None,
) -> T:
    """Like :func:`until`, for a test that must not block its event loop; ``check`` may be a coroutine."""
    wait = _Wait(what, timeout_s, equals, show)
    while True:
        answer = check()
        found = await answer if inspect.isawaitable(answer) else answer
        if wait.is_over(found):
            return cast(T, found)
        await asyncio.sleep(wait.pause())


class _Wait:
    """The times of the next question, and of giving up."""

    def __init__(
        self, what: str, timeout_s: float, equals: Any, show: Callable[[], object] | None
    ) -> None:
        self._what = what
        self._timeout_s = timeout_s
        self._equals = equals
        self._show = show
        self._begun_at = self._asked_at = time.monotonic()
        self._deadline = self._begun_at + timeout_s

    def is_over(self, answer: object) -> bool:
        """True if ``answer`` is the awaited one. Raises AssertionError when it is not, and time is up."""
        if bool(answer) if self._equals is _TRUE else answer == self._equals:
            return True
        if time.monotonic() >= self._deadline:
            raise AssertionError(self._failure(answer))
        return False

    def _failure(self, answer: object) -> str:
        wanted = "" if self._equals is _TRUE else f", not {self._equals!r}"
        text = f"{self._what}: not within {self._timeout_s:g} s; the last answer was {answer!r}"
        return text + wanted + (f"\n{self._show()}" if self._show is not None else "")

    def pause(self) -> float:
        """Waiting uses a quarter of a core where questions are cheap, and half a core at the most: in the
        first seconds. The answering process uses as much, and the awaited work needs the cores.
        """
        now = time.monotonic()
        took = now - self._asked_at
        waited = (now - self._begun_at) * PATIENCE
        pause = max(SHORTEST_PAUSE_S, took, min(max(3 * took, waited), LONG_PAUSE_S))
        self._asked_at = time.monotonic() + pause
        return pause
