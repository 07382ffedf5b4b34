"""Long polls: how long a caller may wait, and a wait that ends when the caller hangs up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from fastapi import Request

from determined_service.base.hub import Hub

MAX_WAIT_S = 60.0
T = TypeVar("T")


def wait_seconds(*given: float | None, default: float = 0.0, limit: float = MAX_WAIT_S) -> float:
    """The first of ``given`` that is not None, within 0 and ``limit``."""
    chosen = next((value for value in given if value is not None), default)
    return min(max(chosen, 0.0), limit)


async def poll(
    request: Request,
    hub: Hub,
    topics: Iterable[str],
    check: Callable[[], Awaitable[T | None]],
    timeout: float,
) -> T | None:
    """As :meth:`Hub.poll`, but stops waiting when the caller is gone."""
    if timeout <= 0:
        return await check()
    return await while_connected(request, hub.poll(topics, check, timeout))


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of ``work``; None: the caller has gone, and the work was cancelled."""
    waiting = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait([waiting, gone], return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else None
    finally:
        for task in (waiting, gone):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
