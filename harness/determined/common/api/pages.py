"""Reads lists that the service returns in pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from determined.common.api.session import Session

PAGE_SIZE = 200


def read(
    session: Session,
    path: str,
    key: str,
    params: Mapping[str, Any] | None = None,
    *,
    offset: int = 0,
    limit: int | None = None,
    page_size: int = PAGE_SIZE,
) -> Listing:
    """The items of ``GET path`` from number ``offset`` on, at most ``limit`` (None: all), one at a time.
    The next page is requested when it is needed. ``key`` names the list in the answer.
    """
    listing = Listing()
    listing._items = _read(listing, session, path, key, params, offset, limit, page_size)
    return listing


class Listing(Iterator[dict[str, Any]]):
    """The items of a list, one at a time."""

    total: int | None = None
    """How many items the whole list has, if the service has said so."""

    _items: Iterator[dict[str, Any]]

    def __next__(self) -> dict[str, Any]:
        return next(self._items)


def _read(
    listing: Listing,
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
        listing.total = total
        yield from items
        offset += len(items)
        if left is not None:
            left -= len(items)
        if not items or (total is not None and offset >= total):
            return
