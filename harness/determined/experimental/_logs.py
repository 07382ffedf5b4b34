"""Reading a trial's logs."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any

from determined.common.api.log_lines import follow_lines
from determined.common.api.session import Session
from determined.experimental._enums import LogLevel, OrderBy, levels_from


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
    """The REST API's log entries (``id``, ``timestamp``, ``level``, ``message``, ``log``, ``rankId``, …),
    oldest first.

    ``follow`` continues until the trial has ended, and waits up to two minutes for a service that is
    being restarted. ``head`` and ``tail`` count entries; both together raise ValueError. Times are Unix
    seconds or RFC 3339.
    """
    batches = iter_batches(
        session,
        trial_id,
        follow=follow,
        head=head,
        tail=tail,
        agent_ids=agent_ids,
        container_ids=container_ids,
        rank_ids=rank_ids,
        stdtypes=stdtypes,
        min_level=min_level,
        timestamp_before=timestamp_before,
        timestamp_after=timestamp_after,
        sources=sources,
        search_text=search_text,
    )
    for batch in batches:
        yield from batch


def iter_batches(session: Session, trial_id: int, **filters: Any) -> Iterator[list[dict[str, Any]]]:
    """Like :func:`iter_entries`: each time the entries that arrived together."""
    return _iter(session, f"/api/v1/trials/{trial_id}/logs", **filters)


def iter_batches_of_task(
    session: Session, task_id: str, **filters: Any
) -> Iterator[list[dict[str, Any]]]:
    """Like :func:`iter_batches`, of a task of any kind."""
    return _iter(session, f"/api/v1/tasks/{task_id}/logs", **filters)


def _iter(
    session: Session,
    path: str,
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
    allocation_ids: Sequence[str] | None = None,
) -> Iterator[list[dict[str, Any]]]:
    if head is not None and tail is not None:
        raise ValueError("give head or tail, not both")
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
        "allocationIds": allocation_ids,
    }
    given = {name: value for name, value in params.items() if value is not None}
    if tail is None:
        if follow and head is None:
            yield from follow_lines(session, path, given)
            return
        asked = {**given, "follow": follow, "orderBy": OrderBy.ASC.value}
        if head is not None:
            asked["limit"] = head
        yield from session.stream_batches(path, params=asked)
        return
    asked = {**given, "limit": tail, "orderBy": OrderBy.DESC.value}
    last = list(session.stream(path, params=asked))[::-1]
    yield last
    if follow:
        yield from follow_lines(session, path, given, last[-1] if last else None)


def _time(value: int | str | None) -> str | None:
    if isinstance(value, int | float):
        return datetime.datetime.fromtimestamp(value, datetime.UTC).isoformat()
    return value
