"""Many requests, one transaction: :class:`GroupCommit`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.backoff import Backoff
from determined_service.base.db import Database
from determined_service.base.errors import ApiError, BadRequest, Unavailable, of_database

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Write = Callable[[AsyncConnection, Sequence[Item]], Awaitable[Sequence[Any]]]
ATTEMPTS = 5
RETRY_SECONDS = (0.03, 1.0)


@dataclass(slots=True)
class _Waiting(Generic[Item]):
    item: Item
    answer: asyncio.Future[Any]


class GroupCommit(Generic[Item]):
    """Collects what arrives while a transaction runs and writes it all in the next one.

    ``write(conn, items)`` runs in one transaction and returns one answer per item; an answer that is an
    :class:`ApiError` is raised to that item's caller. When the transaction fails because of its contents,
    each item is tried alone, so one bad item only delays the others. It may therefore be called several
    times with the same item: nothing of a failed call is kept.

    One writer per process: items of one sender are stored in the order in which they were handed in.
    """

    def __init__(self, db: Database, write: Write[Item], *, max_items: int = 256) -> None:
        self._db = db
        self._write = write
        self._max_items = max_items
        self._waiting: list[_Waiting[Item]] = []
        self._arrived = asyncio.Event()

    async def submit(self, item: Item) -> Any:
        """The item's answer, once its transaction has committed."""
        waiting = _Waiting(item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        return await waiting.answer

    async def run(self) -> None:
        """Write until cancelled; items that still wait then are refused as Unavailable."""
        try:
            while True:
                await self._arrived.wait()
                group = self._waiting[: self._max_items]
                del self._waiting[: self._max_items]
                if not self._waiting:
                    self._arrived.clear()
                # A caller that has gone away has not been told that its item is stored, so it is
                # free to send it again; its item is still written.
                await self._settle(group)
        finally:
            for waiting in self._waiting:
                _fail(waiting, Unavailable("the service is stopping"))

    async def _settle(self, group: list[_Waiting[Item]]) -> None:
        try:
            answers = await self._attempt([waiting.item for waiting in group])
        except asyncio.CancelledError:
            for waiting in group:
                _fail(waiting, Unavailable("the service is stopping"))
            raise
        except Exception as error:
            if len(group) > 1:
                for waiting in group:
                    await self._settle([waiting])
            else:
                _fail(group[0], _explained(error))
            return
        for waiting, answer in zip(group, answers, strict=True):
            if isinstance(answer, ApiError):
                _fail(waiting, answer)
            elif not waiting.answer.done():
                waiting.answer.set_result(answer)

    async def _attempt(self, items: list[Item]) -> Sequence[Any]:
        backoff = Backoff(*RETRY_SECONDS)
        for attempt in range(ATTEMPTS):
            try:
                async with self._db.tx() as conn:
                    return await self._write(conn, items)
            except (psycopg.OperationalError, sa.exc.OperationalError) as error:
                # Deadlocks and lost connections: the same again, a little later.
                if attempt == ATTEMPTS - 1 or isinstance(of_database(error), BadRequest):
                    raise
                logger.warning(
                    "a group of %d items is written again, because its transaction failed: %s",
                    len(items),
                    error,
                )
                await asyncio.sleep(backoff.next_delay())
        raise AssertionError("unreachable")


def _fail(waiting: _Waiting[Any], error: Exception) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)


def _explained(error: Exception) -> Exception:
    return of_database(error) or error
