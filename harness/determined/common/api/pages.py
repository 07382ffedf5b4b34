"""Reads lists that the service returns in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from determined.common.api.session import Session

PAGE_SIZE = 200

Item = TypeVar("Item")
Other = TypeVar("Other")


class Listing(Iterator[Item], Generic[Item]):
    """The items of a list, one at a time."""

    def __init__(self, items: Iterator[Item], pages: _Pages) -> None:
        self._items = items
        self._pages = pages

    @property
    def total(self) -> int | None:
        """The number of items of the whole list; None before the first page."""
        return self._pages.total

    def each(self, make: Callable[[Item], Other]) -> Listing[Other]:
        """The same list, with ``make(item)`` for each item."""
        return Listing(map(make, self._items), self._pages)

    def __next__(self) -> Item:
        return next(self._items)


class _Pages:
    """The number of items of one list, as its pages say it."""

    total: int | None = None


def read(
    session: Session,
    path: str,
    key: str,
    params: Mapping[str, Any] | None = None,
    *,
    offset: int = 0,
    limit: int | None = None,
    page_size: int = PAGE_SIZE,
) -> Listing[dict[str, Any]]:
    """The items of ``GET path`` from number ``offset`` on, at most ``limit`` (None: all), one at a time.
    The next page is requested when it is needed. ``key`` names the list in the answer. A negative ``offset``
    counts from the end.
    """
    pages = _Pages()
    return Listing(_read(pages, session, path, key, params, offset, limit, page_size), pages)


def _read(
    pages: _Pages,
    session: Session,
    path: str,
    key: str,
    params: Mapping[str, Any] | None,
    offset: int,
    limit: int | None,
    page_size: int,
) -> Iterator[dict[str, Any]]:
    given = {name: value for name, value in (params or {}).items() if value is not None}
    left = limit
    while left is None or left > 0:
        wanted = page_size if left is None else min(page_size, left)
        answer = session.get(path, params={**given, "offset": offset, "limit": wanted})
        items = answer.get(key) or []
        total = (answer.get("pagination") or {}).get("total")
        pages.total = total
        yield from items
        if offset < 0:
            offset = max(0, (total or 0) + offset)
        offset += len(items)
        if left is not None:
            left -= len(items)
        if not items or (total is not None and offset >= total):
            return
