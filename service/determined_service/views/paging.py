"""Pages of a list, as Determined's API has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.base.bounds import Id
from determined_service.base.errors import BadRequest

DEFAULT_LIMIT = 100

Offset = Annotated[Id, Query(description="Items to skip; a negative number counts from the end.")]
Limit = Annotated[Id, Query(description="0: 100 items; -1: all; -2: none, only the pagination.")]
OrderBy = Annotated[str, Query(description="ORDER_BY_ASC or ORDER_BY_DESC.", pattern=r"^ORDER_BY_")]


def window(total: int, offset: int, limit: int) -> tuple[int, int]:
    """The positions of the first wanted item and of the item after the last."""
    start = min(max(total + offset, 0) if offset < 0 else offset, total)
    if limit == -2:
        return start, start
    if limit == -1:
        return start, total
    if limit < 0:
        raise BadRequest(f"limit must be a number from 0 on, -1 or -2, not {limit}")
    return start, min(start + (limit or DEFAULT_LIMIT), total)


def pagination(total: int, offset: int, limit: int) -> dict[str, int]:
    """The pagination's JSON beside a list."""
    start, end = window(total, offset, limit)
    return {
        "offset": offset,
        "limit": limit,
        "startIndex": start,
        "endIndex": end,
        "total": total,
    }


async def count_of(conn: AsyncConnection, keys: sa.Select[Any]) -> int:
    """The number of rows it selects."""
    counted = sa.select(sa.func.count()).select_from(keys.order_by(None).subquery())
    return int((await conn.execute(counted)).scalar_one())


async def fetch_page(
    conn: AsyncConnection, statement: sa.Select[Any], offset: int, limit: int
) -> tuple[Sequence[sa.Row[Any]], dict[str, int]]:
    """The rows of ``statement`` (ordered) in the window, and the pagination.

    For small rows; where users store more than a line in each, :func:`.lists.answer_list`.
    """
    total = await count_of(conn, statement)
    start, end = window(total, offset, limit)
    rows: Sequence[sa.Row[Any]] = []
    if end > start:
        rows = (await conn.execute(statement.offset(start).limit(end - start))).all()
    return rows, pagination(total, offset, limit)


def ordered(
    keys: Mapping[str, sa.ColumnElement[Any]],
    sort_by: str,
    order_by: str,
    tie: sa.ColumnElement[Any],
) -> list[sa.ColumnElement[Any]]:
    """ORDER BY of ``sort_by`` (``SORT_BY_…``), NULLs last, ties by ``tie``; raises BadRequest."""
    key = sort_by.removeprefix("SORT_BY_")
    if key not in keys:
        names = ", ".join(f"SORT_BY_{name}" for name in keys if name != "UNSPECIFIED")
        raise BadRequest(f"cannot sort by {sort_by!r}; choose from {names}")
    column = keys[key]
    if order_by == "ORDER_BY_DESC":
        return [column.desc().nulls_last(), tie.desc()]
    return [column.asc().nulls_last(), tie.asc()]
