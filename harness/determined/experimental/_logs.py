"""Reading a trial's logs."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any

from determined.common.api.session import Session
from determined.experimental._enums import LogLevel, OrderBy, levels_from

# `tail` and `follow` together are two requests; the second one begins a little earlier than the
# first ended, and what was already seen is left out.
_OVERLAP = datetime.timedelta(milliseconds=1)


def iter_entries(
    session: Session,
    trial_id: int,
    *,
    follow: bool = False,
    head: int | None = None,
    tail: int | None = None,
    agent_ids: Sequence[str] | None = None,
    container_ids: Sequence[str] | None = None,
    rank_ids: Sequence[int] | None = None,
    stdtypes: Sequence[str] | None = None,
    min_level: LogLevel | None = None,
    timestamp_before: int | str | None = None,
    timestamp_after: int | str | None = None,
    sources: Sequence[str] | None = None,
    search_text: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Log entries as the REST API gives them (``id``, ``timestamp``, ``level``, ``message``, ``log``,
    ``rankId``, …), oldest first.

    ``follow`` goes on until the trial has ended. ``head`` and ``tail`` count entries; together they
    are refused with ValueError. Times are Unix seconds or RFC 3339.
    """
    if head is not None and tail is not None:
        raise ValueError("head and tail cannot both be given")
    params: dict[str, Any] = {
        "agentIds": agent_ids,
        "containerIds": container_ids,
        "rankIds": rank_ids,
        "stdtypes": stdtypes,
        "levels": levels_from(min_level) if min_level else None,
        "timestampBefore": _time(timestamp_before),
        "timestampAfter": _time(timestamp_after),
        "sources": sources,
        "searchText": search_text,
    }
    path = f"/api/v1/trials/{trial_id}/logs"
    given = {name: value for name, value in params.items() if value is not None}
    if tail is None:
        asked = {**given, "follow": follow, "orderBy": OrderBy.ASC.value}
        if head is not None:
            asked["limit"] = head
        yield from session.stream(path, params=asked)
        return
    asked = {**given, "limit": tail, "orderBy": OrderBy.DESC.value}
    last = list(session.stream(path, params=asked))[::-1]
    yield from last
    if follow:
        yield from _follow_after(session, path, given, last)


def _follow_after(
    session: Session, path: str, params: dict[str, Any], last: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    asked = {**params, "follow": True, "orderBy": OrderBy.ASC.value}
    if last:
        newest = datetime.datetime.fromisoformat(last[-1]["timestamp"])
        asked["timestampAfter"] = (newest - _OVERLAP).isoformat()
    seen = {entry["id"] for entry in last}
    for entry in session.stream(path, params=asked):
        if entry["id"] not in seen:
            yield entry


def _time(value: int | str | None) -> str | None:
    if isinstance(value, int | float):
        return datetime.datetime.fromtimestamp(value, datetime.UTC).isoformat()
    return value
