"""How long what got slots had waited for them, by day and resource pool: ``v1AggregateQueueStats``."""

from __future__ import annotations

import asyncio
import datetime
import time
from typing import Any

import sqlalchemy as sa

from determined_service.base.db import Database, seeing
from determined_service.state.change import reader

DAYS = 30
"""Today and the days before it, as in Determined."""
KEPT_S = 30.0
"""For so long an answer is given to others, too: it reads every allocation of a month."""

_WAITED = sa.text(
    """
    SELECT resource_pool, (assigned_at AT TIME ZONE 'UTC')::date AS day,
           avg(extract(epoch FROM assigned_at - requested_at))::float8 AS seconds
    FROM allocations
    WHERE assigned_at >= :since AND requested_at <= assigned_at
    GROUP BY 1, 2 ORDER BY 1, 2
    """
)


class WaitingTimes:
    """One per service process."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = asyncio.Lock()
        self._found: dict[str, list[dict[str, Any]]] = {}
        self._kept_until = 0.0

    async def look(self) -> dict[str, list[dict[str, Any]]]:
        """By pool the mean seconds of each day (UTC) on which something got slots, the first day first."""
        async with self._lock:
            if time.monotonic() >= self._kept_until:
                with seeing(None):
                    self._found = await self._read()
                self._kept_until = time.monotonic() + KEPT_S
            return self._found

    async def _read(self) -> dict[str, list[dict[str, Any]]]:
        today = datetime.datetime.now(datetime.UTC).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        since = today - datetime.timedelta(days=DAYS - 1)
        found: dict[str, list[dict[str, Any]]] = {}
        async with reader(self._db).connect() as conn:
            for row in await conn.execute(_WAITED, {"since": since}):
                one = {"periodStart": row.day.isoformat(), "seconds": row.seconds}
                found.setdefault(row.resource_pool, []).append(one)
        return found
