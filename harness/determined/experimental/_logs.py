"""Reading the logs of trials and tasks."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from determined.common.api.log_lines import follow_lines
from determined.common.api.session import Session

if TYPE_CHECKING:
    from determined.experimental._enums import LogLevel


class LogFilters(TypedDict, total=False):
    """Which log entries are read. ``head`` and ``tail`` count entries, and exclude each other. Times are Unix
    seconds or RFC 3339.
    """

    head: int | None
    tail: int | None
    agent_ids: Sequence[str] | None
    allocation_ids: Sequence[str] | None
    container_ids: Sequence[str] | None
    rank_ids: Sequence[int] | None
    stdtypes: Sequence[str] | None
    min_level: LogLevel | None
    timestamp_before: int | str | None
    timestamp_after: int | str | None
    sources: Sequence[str] | None
    search_text: str | None


def iter_batches(
    session: Session, path: str, follow: bool, filters: LogFilters
) -> Iterator[list[dict[str, Any]]]:
    """The REST API's log entries (``id``, ``timestamp``, ``level``, ``message``, ``log``, ``rankId``, …),
    oldest first: each time those that arrived together.

    ``follow`` continues until the trial or task has ended, and waits up to two minutes for a service that is
    being restarted. Raises ValueError for both of ``head`` and ``tail``.
    """
    head, tail, level = filters.get("head"), filters.get("tail"), filters.get("min_level")
    if head is not None and tail is not None:
        raise ValueError("give head or tail, not both")
    params: dict[str, Any] = {
        "agentIds": filters.get("agent_ids"),
        "containerIds": filters.get("container_ids"),
        "rankIds": filters.get("rank_ids"),
        "stdtypes": filters.get("stdtypes"),
        "levels": _levels(level),
        "timestampBefore": _time(filters.get("timestamp_before")),
        "timestampAfter": _time(filters.get("timestamp_after")),
        "sources": filters.get("sources"),
        "searchText": filters.get("search_text"),
        "allocationIds": filters.get("allocation_ids"),
    }
    given = {name: value for name, value in params.items() if value is not None}
    if tail is None:
        if follow and head is None:
            yield from follow_lines(session, path, given)
            return
        asked = {**given, "follow": follow, "orderBy": "ORDER_BY_ASC"}
        if head is not None:
            asked["limit"] = head
        yield from session.stream_batches(path, params=asked)
        return
    asked = {**given, "limit": tail, "orderBy": "ORDER_BY_DESC"}
    last = list(session.stream(path, params=asked))[::-1]
    yield last
    if follow:
        yield from follow_lines(session, path, given, last[-1] if last else None)


def _levels(lowest: LogLevel | None) -> list[str] | None:
    if lowest is None:
        return None
    # Imported here: most commands of `det` that print logs do without.
    from determined.experimental._enums import levels_from

    return levels_from(lowest)


def _time(value: int | str | None) -> str | None:
    if isinstance(value, int | float):
        return datetime.datetime.fromtimestamp(value, datetime.UTC).isoformat()
    return value
