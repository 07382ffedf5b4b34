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


async def fetch_page(
    conn: AsyncConnection,
    statement: sa.Select[Any],
    offset: int,
    limit: int,
    *,
    key: sa.ColumnElement[Any] | None = None,
    keys: sa.Select[Any] | None = None,
) -> tuple[Sequence[sa.Row[Any]], dict[str, int]]:
    """The rows of ``statement`` (ordered) in the window, and the pagination.

    With ``key``, a column whose value no two rows share, what the other columns need is looked up for the
    rows of the page only, not for those before it. ``keys`` selects that column for the same rows in the same
    order, where this can be said with fewer joins.
    """
    if keys is None:
        keys = statement if key is None else statement.with_only_columns(key)
    counted = sa.select(sa.func.count()).select_from(keys.order_by(None).subquery())
    total = (await conn.execute(counted)).scalar_one()
    start, end = window(total, offset, limit)
    rows: Sequence[sa.Row[Any]] = []
    if end > start:
        page = keys.offset(start).limit(end - start)
        if key is not None:
            page = statement.where(key.in_(sa.select(page.subquery("page").c[0])))
        rows = (await conn.execute(page)).all()
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
