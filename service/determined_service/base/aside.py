"""Work that takes the processor for long, away from the event loop: :func:`aside`.

Python runs one thread at a time. A second one that computes slows the loop down a little; a handful would
hold it up, so there are two, one for short work and one for long, and what is long waits for its like only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

LONG_BYTES = 32 * 1024
"""Input of this size counts as long work."""

P = ParamSpec("P")
T = TypeVar("T")

_SHORT = ThreadPoolExecutor(1, thread_name_prefix="short-work")
_LONG = ThreadPoolExecutor(1, thread_name_prefix="long-work")


async def aside(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``work(*args)``, computed from ``size`` bytes of input in another thread."""
    lane = _LONG if size > LONG_BYTES else _SHORT
    return await asyncio.get_running_loop().run_in_executor(lane, lambda: work(*args, **kwargs))
