"""Wakes long polls: Postgres NOTIFY in the changing transaction, one LISTEN per process.

A transaction calls :func:`notify` with the topics it changed; Postgres delivers them at commit, to
every service process. :class:`Hub` turns them into wake-ups of the coroutines that wait in
:meth:`Hub.poll`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

logger = logging.getLogger(__name__)

CHANNEL = "determined"
T = TypeVar("T")


async def notify(conn: AsyncConnection, *topics: str) -> None:
    """Announces ``topics`` (at most 8000 bytes each) when ``conn``'s transaction commits."""
    for topic in dict.fromkeys(topics):
        await conn.execute(
            sa.text("SELECT pg_notify(:channel, :topic)"), {"channel": CHANNEL, "topic": topic}
        )


async def wait_at_most(event: asyncio.Event, seconds: float) -> bool:
    """True if ``event`` was set within ``seconds``."""
    # Not wait_for: before Python 3.12 it may swallow a cancellation that comes together with the
    # event, and the service would not stop.
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class Hub:
    """Topics to waiting coroutines. ``dsn`` is a libpq URL; :meth:`run` listens until cancelled."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._waiters: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.closed = False

    def close(self) -> None:
        """Ends all waits, now and later, because the process is stopping."""
        self.closed = True
        self.wake_all()

    def wake(self, topic: str) -> None:
        for event in self._waiters.get(topic, ()):
            event.set()

    def wake_after(self, seconds: float, topic: str) -> None:
        """Wake those that wait for the topic in so many seconds, and not when an earlier call has said."""
        earlier = self._timers.pop(topic, None)
        if earlier is not None:
            earlier.cancel()
        self._timers[topic] = asyncio.get_running_loop().call_later(seconds, self.wake, topic)

    def wake_all(self) -> None:
        for events in self._waiters.values():
            for event in events:
                event.set()

    @contextlib.contextmanager
    def subscribe(self, topics: Iterable[str]) -> Iterator[asyncio.Event]:
        """An event that is set whenever one of ``topics`` is announced; the caller clears it."""
        event = asyncio.Event()
        topics = tuple(topics)
        for topic in topics:
            self._waiters[topic].add(event)
        try:
            yield event
        finally:
            for topic in topics:
                self._waiters[topic].discard(event)
                if not self._waiters[topic]:
                    del self._waiters[topic]

    async def poll(
        self, topics: Iterable[str], check: Callable[[], Awaitable[T | None]], timeout: float
    ) -> T | None:
        """Calls ``check`` now and after each wake-up until it gives a value or ``timeout`` seconds.

        The subscription begins before the first check, so no change falls between the two.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        with self.subscribe(topics) as event:
            while True:
                event.clear()
                found = await check()
                remaining = deadline - loop.time()
                if found is not None or remaining <= 0 or self.closed:
                    return found
                await wait_at_most(event, remaining)

    async def run(self) -> None:
        """Listen for ever; reconnect, and then wake all waiters (announcements may be lost)."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._dsn, autocommit=True
                ) as conn:
                    await conn.execute(f"LISTEN {CHANNEL}")
                    self.wake_all()
                    async for note in conn.notifies():
                        self.wake(note.payload)
            except psycopg.OperationalError as error:
                logger.warning("lost the LISTEN connection to Postgres: %s", error)
                await asyncio.sleep(0.5)
