"""Following a log through restarts of the service."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Any

from determined.common.api import errors, patience
from determined.common.api.session import Session

# `tail` with `follow` makes two requests, and a request that breaks off is sent again. Each request
# begins earlier than the end of the one before, because lines of several processes are not stored in the
# order of their times. Entries that were returned already are left out.
_OVERLAP = datetime.timedelta(minutes=1)


def follow_lines(
    session: Session, path: str, params: dict[str, Any], last: dict[str, Any] | None = None
) -> Iterator[list[dict[str, Any]]]:
    """The entries at ``path`` after ``last``, those together that arrived together, until the task has ended.

    Waits up to two minutes for a service that is being restarted.
    """
    away_since: float | None = None
    while True:
        asked = {**params, "follow": True, "orderBy": "ORDER_BY_ASC"}
        if last is not None:
            newest = datetime.datetime.fromisoformat(last["timestamp"])
            asked["timestampAfter"] = _later(newest - _OVERLAP, params.get("timestampAfter"))
        try:
            for batch in session.stream_batches(path, params=asked):
                away_since = None
                # Entries come in the order in which they were stored, which is the order of their ids.
                known = -1 if last is None else int(last["id"])
                new = [entry for entry in batch if int(entry["id"]) > known]
                if new:
                    last = new[-1]
                    yield new
            return
        except errors.MasterNotFoundException:
            now = time.monotonic()
            away_since = away_since or now
            if now - away_since >= patience.LIMIT_S:
                raise
            time.sleep(patience.PAUSE_S)


def _later(begin: datetime.datetime, wanted: str | None) -> str:
    """The later one of ``begin`` and the caller's own limit."""
    if wanted is None:
        return begin.isoformat()
    asked = datetime.datetime.fromisoformat(wanted)
    return max(begin, asked if asked.tzinfo else asked.replace(tzinfo=datetime.UTC)).isoformat()
