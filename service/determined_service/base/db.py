"""The connection pool and the one way to change state: :meth:`Database.tx`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any, Final

import orjson
from sqlalchemy import event, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from determined.common.wire import limits
from determined_registry.database import seen
from determined_registry.database.seen import Seen
from determined_service.base.shares import InFlight, Share


def sqlalchemy_url(db_url: str) -> str:
    """``postgresql://…`` with psycopg 3 as the driver."""
    return make_url(db_url).set(drivername="postgresql+psycopg").render_as_string(False)


_HOLD = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")


async def hold_name(conn: AsyncConnection, name: str) -> None:
    """Take an advisory lock on ``name`` until the transaction ends: for things that have no row yet."""
    await conn.execute(_HOLD, {"name": name})


SEEN: ContextVar[Seen | None] = ContextVar("seen", default=None)
"""What the statements of this task read: what one user sees; None: everything.

A request that only reads, of a user whom roles limit, has it from where its rights are checked
(:mod:`determined_service.access.dependencies`) to its end."""
ASKED: ContextVar[Seen | None] = ContextVar("asked", default=None)
"""What the sender of this task's request sees, whatever it asks for; None: everything, or there is none."""
_UNKNOWN: Final = object()


@contextlib.contextmanager
def seeing(what: Seen | None) -> Iterator[None]:
    """Within the block, connections that are taken show this; None: everything, for what is counted or kept
    for all users."""
    token = SEEN.set(what)
    try:
        yield
    finally:
        SEEN.reset(token)


@contextlib.contextmanager
def asking(what: Seen | None) -> Iterator[None]:
    """Within the block, the service acts for somebody who sees this."""
    token = ASKED.set(what)
    try:
        yield
    finally:
        ASKED.reset(token)


@contextlib.asynccontextmanager
async def as_asker(conn: AsyncConnection) -> AsyncIterator[None]:
    """Within the block, a change reads what the sender of the request sees: for things that it names beside
    its target. Where the sender sees everything, this costs no statement."""
    what, before = ASKED.get(), conn.info.get(SEEN)
    if what is None or what == before:
        yield
        return
    conn.info[SEEN] = _UNKNOWN
    await conn.exec_driver_sql(seen.NARROW, seen.parameters(what))
    try:
        yield
    finally:
        # One that has failed is rolled back, and with it the settings.
        with contextlib.suppress(SQLAlchemyError):
            if before is None:
                await conn.exec_driver_sql(seen.WIDEN)
            else:
                await conn.exec_driver_sql(seen.NARROW, seen.parameters(before))
            conn.info[SEEN] = before


def _show(connection: Any, record: Any, _: Any) -> None:
    """Make a connection that is taken from the pool show what :data:`SEEN` says. One that shows everything,
    and is to, costs no statement."""
    wanted = SEEN.get()
    if wanted is None and record.info.get(SEEN) is None:
        return
    record.info[SEEN] = _UNKNOWN
    # Outside of a transaction, whose end could undo it.
    connection.autocommit = True
    cursor = connection.cursor()
    try:
        if wanted is None:
            cursor.execute(seen.WIDEN)
        else:
            cursor.execute(seen.NARROW, seen.parameters(wanted))
    finally:
        cursor.close()
    connection.autocommit = False
    record.info[SEEN] = wanted


CONNECTIONS = 20
OF_ONE = 8
"""Connections that the requests of one user have at once."""


ANSWER_WAIT_S = 30.0
"""Seconds that a piece of a long answer waits for its place in memory."""


class Database:
    """One pool per process.

    Connections are not tried before use (that would cost each transaction a round trip): after a
    restart of Postgres the first transaction fails, the pool is emptied, and the client gets 503 and asks
    again.
    """

    def __init__(self, db_url: str, *, pool_size: int = 10) -> None:
        self.engine: AsyncEngine = create_async_engine(
            sqlalchemy_url(db_url),
            pool_size=pool_size,
            max_overflow=CONNECTIONS - pool_size,
            # Postgres gives a jsonb 1e300 back as 301 digits: a float to orjson, an int to json.
            json_deserializer=orjson.loads,
            # Values sent, such as a password's hash, must not be logged.
            hide_parameters=True,
        )
        event.listen(self.engine.sync_engine, "checkout", _show)
        self.answers = InFlight(
            limits.ANSWERS_BYTES, limits.ANSWERS_OF_ONE_BYTES, patience_s=ANSWER_WAIT_S
        )
        """The pieces of long answers that are being read, made and sent."""
        self._share = Share(OF_ONE, "the database", waiting=limits.REQUESTS_AT_ONCE)

    @contextlib.asynccontextmanager
    async def tx(self) -> AsyncIterator[AsyncConnection]:
        """One transaction: commits at the end of the block, rolls back on any exception."""
        async with self._share.one(), self.engine.begin() as conn:
            yield conn

    async def close(self) -> None:
        await self.engine.dispose()
