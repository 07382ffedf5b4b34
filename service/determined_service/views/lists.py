"""Lists as answers: :func:`answer_list`, which holds no more than a piece of a long one.

The size of a row is asked first, without reading it. A list that is light is one answer, as ever. A heavy one
is read, made and sent piece by piece, each in a separate transaction: so neither its memory nor its time
grows with what users have stored, and a client that reads slowly holds no connection of the database.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined.common.wire import limits
from determined_service.base.aside import aside
from determined_service.base.db import Database
from determined_service.base.json import JsonResponse, dumps
from determined_service.base.streams import Stream
from determined_service.views.paging import count_of, pagination, window

Row = sa.Row[Any]
Make = Callable[[AsyncConnection, Sequence[Row]], Awaitable[Sequence[Any]]]

INLINE_BYTES = 128 * 1024
"""Heavier rows are made into JSON beside the event loop."""
_SMALL = 256
KEYS = 10_000
"""Rows whose keys are known at a time."""
_PATIENCE = sa.text("SELECT set_config('statement_timeout', :ms, true)")


def weight(*columns: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """About how many bytes these columns of a row (texts, JSON) have as text."""
    # A small value has its size in its header; Postgres compresses larger ones, to a hundredth at best.
    sizes = (
        sa.case(
            (sa.func.pg_column_size(column) < _SMALL, _SMALL),
            else_=sa.func.octet_length(sa.cast(column, sa.Text)),
        )
        for column in columns
    )
    return sum((sa.func.coalesce(size, 0) for size in sizes), start=sa.literal(_SMALL))


def each(make: Callable[[Row], Any]) -> Make:
    """For :func:`answer_list`: ``make`` of each row, which needs nothing else of the database."""

    async def made(conn: AsyncConnection, rows: Sequence[Row]) -> list[Any]:
        return [make(row) for row in rows]

    return made


def each_aside(make: Callable[[Row], Any], sizes: Callable[[Row], int]) -> Make:
    """As :func:`each`, beside the event loop when the rows' ``sizes`` are large."""

    async def made(conn: AsyncConnection, rows: Sequence[Row]) -> list[Any]:
        size = sum(map(sizes, rows))
        if size <= INLINE_BYTES:
            return [make(row) for row in rows]
        return await aside(size, lambda: [make(row) for row in rows])

    return made


async def answer_list(
    db: Database,
    name: str,
    statement: sa.Select[Any],
    key: sa.ColumnElement[Any],
    heavy: sa.ColumnElement[int],
    make: Make,
    *,
    offset: int,
    limit: int,
    keys: sa.Select[Any] | None = None,
    counted: sa.Select[Any] | None = None,
    beside: dict[str, Any] | None = None,
    patience_s: float = 0,
) -> Response:
    """``{name: […], "pagination": {…}}`` of the rows of ``statement`` (ordered) in the window.

    Args:
        key: a column of ``statement`` whose value no two rows share. heavy: :func:`weight` of a row.
        keys: selects ``key`` for the same rows in the same order, where this can be said with fewer joins.
        counted: selects as many rows as ``keys``, where only the order needs more joins.
        beside: what else the answer holds.
        patience_s: how long each statement that finds keys may take; 0: as long as it does.
    """
    if keys is None:
        keys = statement.with_only_columns(key)
    async with db.tx() as conn:
        await be_patient(conn, patience_s)
        total = await count_of(conn, keys if counted is None else counted)
        start, end = window(total, offset, limit)
        rest = {**(beside or {}), "pagination": pagination(total, offset, limit)}
        weighed = keys.add_columns(heavy.label("weight"))
        pieces = await _weighed(conn, weighed, start, end)
        if not pieces:
            return JsonResponse({name: [], **rest})
        is_whole = len(pieces) == 1 and end - start <= KEYS
        if is_whole and pieces[0][1] <= limits.ANSWER_PIECE_BYTES:
            rows = await _rows(conn, statement, key, pieces[0][0])
            return JsonResponse({name: await make(conn, rows), **rest})

    async def body() -> AsyncIterator[bytes]:
        nonlocal pieces
        yield b'{"%s":[' % name.encode()
        separator = b""
        place = start
        while place < end:
            for wanted, size in pieces:
                async with db.answers.hold(size):
                    async with db.tx() as conn:
                        rows = await _rows(conn, statement, key, wanted)
                        found = await make(conn, rows)
                    if found:
                        yield separator + dumps(found)[1:-1]
                        separator = b","
                    # Before the next piece waits for its place.
                    del rows, found
            place += KEYS
            async with db.tx() as conn:
                await be_patient(conn, patience_s)
                pieces = await _weighed(conn, weighed, place, end)
        yield b"]," + dumps(rest)[1:]

    return Stream(body(), media_type=JsonResponse.media_type)


async def answer_one(
    db: Database, name: str, size: int, make: Callable[[AsyncConnection], Awaitable[Any]]
) -> Response:
    """``{name: …}`` of one thing that weighs about ``size`` bytes."""
    if size <= limits.ANSWER_PIECE_BYTES:
        async with db.tx() as conn:
            return JsonResponse({name: await make(conn)})

    async def body() -> AsyncIterator[bytes]:
        async with db.answers.hold(size):
            async with db.tx() as conn:
                found = await make(conn)
            yield await aside(size, dumps, {name: found})
            del found

    return Stream(body(), media_type=JsonResponse.media_type)


async def be_patient(conn: AsyncConnection, seconds: float) -> None:
    """Each further statement of the transaction may take so long; 0: as long as it does."""
    if seconds:
        await conn.execute(_PATIENCE, {"ms": str(round(seconds * 1000))})


async def _weighed(
    conn: AsyncConnection, keys: sa.Select[Any], start: int, end: int
) -> list[tuple[list[Any], int]]:
    """The next pieces of the window: the keys of their rows, and what these weigh together."""
    some = min(end - start, KEYS)
    if some <= 0:
        return []
    return _divided((await conn.execute(keys.offset(start).limit(some))).all())


def _divided(found: Sequence[Row]) -> list[tuple[list[Any], int]]:
    """Keys that are read together, with the size of each piece; a row larger than a piece is one by
    itself."""
    pieces: list[tuple[list[Any], int]] = []
    held = limits.ANSWER_PIECE_BYTES + 1
    for one, size in found:
        if held + size > limits.ANSWER_PIECE_BYTES:
            pieces.append(([], 0))
            held = 0
        held += size
        pieces[-1][0].append(one)
        pieces[-1] = pieces[-1][0], held
    return pieces


async def _rows(
    conn: AsyncConnection, statement: sa.Select[Any], key: sa.ColumnElement[Any], wanted: list[Any]
) -> Sequence[Row]:
    return (await conn.execute(statement.where(key.in_(wanted)))).all()


def raw(text: str | None) -> orjson.Fragment | None:
    """JSON that Postgres has written, as a part of an answer; it is not read on the way."""
    return None if text is None else orjson.Fragment(text)
