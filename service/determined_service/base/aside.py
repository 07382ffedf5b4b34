"""Work that takes the processor for long, away from the event loop: :func:`aside`.

Python runs one thread at a time. One further computing thread slows the event loop down a little, and several
would block it. So there are two, one for short work and one for long, and long work waits only for long work.
Callers take turns, and work whose caller has gone is not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from determined_service.base.shares import Share

LONG_BYTES = 32 * 1024
"""Input of this size counts as long work."""

P = ParamSpec("P")
T = TypeVar("T")

WAITING = 64
"""Pieces of work of one user that wait for their turn."""


class Lane:
    """One thread, in whose line each user has one piece of work at a time."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._share = Share(1, "a thread that computes", waiting=WAITING)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work(*args)``. Raises TooManyRequests."""
        async with self._share.one():
            running = asyncio.get_running_loop().run_in_executor
            return await running(self._thread, lambda: work(*args, **kwargs))


_SHORT = Lane("short-work")
_LONG = Lane("long-work")


async def aside(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``work(*args)``, computed from ``size`` bytes of input in another thread."""
    return await (_LONG if size > LONG_BYTES else _SHORT).run(work, *args, **kwargs)
