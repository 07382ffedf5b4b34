"""Tasks that end when nobody has used them for a while (``tasks.idle_timeout_s``).

The process that knows if a task is in use calls :func:`note_use`: a notebook's own process, the proxy. The
reconciler asks :func:`idle_tasks` and ends what is overdue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.ingest import logs
from determined_service.lifecycle.kinds.table import launched_kinds, slot_kind
from determined_service.state.change import Change

# Only the first report of a rest counts, so that a rest is as long as it is.
_NOTE = sa.text(
    """
    UPDATE tasks SET idle_since = CASE WHEN :in_use THEN NULL ELSE coalesce(idle_since, now()) END
    WHERE id = :id AND (idle_since IS NULL) <> :in_use
    """
)
_VISITED = sa.text(
    """
    UPDATE tasks SET idle_since = now()
    WHERE id = ANY(:ids) AND kind = ANY(:kinds) AND state = 'ACTIVE' AND idle_timeout_s IS NOT NULL
    """
)
_IDLE = sa.text(
    """
    SELECT k.id, k.kind, k.idle_timeout_s, k.idle_since,
           extract(epoch FROM now() - k.idle_since)::float8 AS idle_s
    FROM tasks k
    WHERE k.kind = ANY(:kinds) AND k.state = 'ACTIVE' AND k.idle_timeout_s IS NOT NULL
      AND k.idle_since < now() - make_interval(secs => k.idle_timeout_s * :part)
    ORDER BY k.id
    """
)
_LOCK = sa.text(
    """
    SELECT extract(epoch FROM now() - idle_since) >= idle_timeout_s AS overdue
    FROM tasks WHERE id = :id FOR NO KEY UPDATE
    """
)
WARN_AT = 0.8
"""After this part of its time the log says that a task will end."""


async def note_use(conn: AsyncConnection, task_id: str, *, in_use: bool) -> None:
    """Somebody uses the task now, or nobody does; one statement, so ``conn`` needs no transaction."""
    await conn.execute(_NOTE, {"id": task_id, "in_use": in_use})


async def note_visits(conn: AsyncConnection, task_ids: Sequence[str]) -> None:
    """People were at these tasks a moment ago, through the proxy; one statement."""
    kinds = [name for name, kind in launched_kinds().items() if kind.visits_are_use]
    await conn.execute(_VISITED, {"ids": list(task_ids), "kinds": kinds})


async def idle_tasks(conn: AsyncConnection, kinds: Sequence[str]) -> list[sa.Row[Any]]:
    """The tasks that have rested for the part :data:`WARN_AT` of their time or longer."""
    found = await conn.execute(_IDLE, {"kinds": list(kinds), "part": WARN_AT})
    return list(found)


async def warn(change: Change, row: sa.Row[Any]) -> None:
    """Says in the task's log that it will end."""
    left = max(0, row.idle_timeout_s - row.idle_s)
    words = (
        f"this task was not used for {row.idle_s:.0f} s: it ends in {left:.0f} s, unless it is used again "
        f"(idle_timeout: {row.idle_timeout_s:.0f} s)"
    )
    await logs.add_line(change.conn, row.id, f"{row.id}.1", words, "WARNING")


async def end_if_idle(change: Change, row: sa.Row[Any]) -> bool:
    """Ends the task if nobody has used it meanwhile."""
    found = (await change.conn.execute(_LOCK, {"id": row.id})).first()
    if found is None or not found.overdue:
        return False
    words = f"nobody used it for {row.idle_timeout_s:.0f} s (idle_timeout)"
    await slot_kind(row.kind).finish(change, row.id, words)
    return True
