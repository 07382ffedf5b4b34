"""The searcher's inbox: numbered events per experiment, in the order in which they committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.base import topics
from determined_service.base.hub import CHANNEL

# The row of `searches` is locked from here to the commit, so ids become visible in order. It is
# the last lock a change takes (see lifecycle).
APPEND = """counted AS (
        UPDATE searches SET last_event_id = last_event_id + :n
        WHERE experiment_id = :experiment_id
        RETURNING last_event_id
    ), appended AS (
        INSERT INTO search_events (experiment_id, id, event)
        SELECT :experiment_id, last_event_id - :n + place, item
        FROM counted,
             jsonb_array_elements(cast(:events AS jsonb)) WITH ORDINALITY AS given(item, place)
    )"""
_APPEND = sa.text(f"WITH {APPEND} SELECT last_event_id, pg_notify(:channel, :topic) FROM counted")


def append_parameters(experiment_id: int, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parameters of :data:`APPEND`."""
    return {
        "n": len(events),
        "experiment_id": experiment_id,
        "events": orjson.dumps(list(events)).decode(),
    }


async def append_events(
    conn: AsyncConnection, experiment_id: int, events: Sequence[Mapping[str, Any]]
) -> int | None:
    """Adds ``events`` (JSON of determined_searchers' events) and wakes the search's driver.

    Returns the last one's id; None when the experiment has no search. Call it last in a
    transaction that also changes trials.
    """
    if not events:
        return None
    found = await conn.execute(
        _APPEND,
        append_parameters(experiment_id, events)
        | {"channel": CHANNEL, "topic": topics.search(experiment_id)},
    )
    return found.scalar_one_or_none()


async def append_event(
    conn: AsyncConnection, experiment_id: int, event: Mapping[str, Any]
) -> int | None:
    """One event; see :func:`append_events`."""
    return await append_events(conn, experiment_id, [event])
