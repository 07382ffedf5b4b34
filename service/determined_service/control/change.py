"""One transaction of the control half: a connection and what must be announced at its end.

The last statements of a change append the searcher's events, write the outbox rows and announce the
topics: two statements however many there are, and the lock on the search's row comes last.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from determined_searchers import Event
from determined_service.control.events import append_events
from determined_service.db import Database
from determined_service.hub import CHANNEL

_FLUSH = sa.text(
    """
    WITH written AS (
        INSERT INTO prefect_outbox (entity, kind, payload)
        SELECT item ->> 'entity', item ->> 'kind', item -> 'payload'
        FROM jsonb_array_elements(cast(:rows AS jsonb)) WITH ORDINALITY AS given(item, place)
        ORDER BY place
    )
    SELECT pg_notify(:channel, topic) FROM unnest(cast(:topics AS text[])) AS topic
    """
)


@dataclass(slots=True)
class Change:
    """``conn`` is inside a transaction; rows are locked experiment, then trial, then allocation."""

    conn: AsyncConnection
    topics: dict[str, None] = field(default_factory=dict)
    outbox: list[dict[str, Any]] = field(default_factory=list)
    events: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def notify(self, *topics: str) -> None:
        """Announces ``topics`` when the change commits."""
        self.topics.update(dict.fromkeys(topics))

    def tell_prefect(self, entity: str, kind: str, **payload: Any) -> None:
        """Leaves a row for the mirror; rows of one entity keep their order."""
        self.outbox.append({"entity": entity, "kind": kind, "payload": payload})
        self.topics["outbox"] = None

    def tell_search(self, experiment_id: int, *events: Event) -> None:
        """Appends ``events`` to the searcher's inbox."""
        self.events.setdefault(experiment_id, []).extend(event.to_json() for event in events)

    async def flush(self) -> None:
        """Writes what was left for the end of the transaction."""
        for experiment_id, events in self.events.items():
            await append_events(self.conn, experiment_id, events)
        if not self.topics:
            return
        await self.conn.execute(
            _FLUSH,
            {
                "channel": CHANNEL,
                "topics": list(self.topics),
                "rows": orjson.dumps(self.outbox).decode(),
            },
        )


@contextlib.asynccontextmanager
async def changing(db: Database) -> AsyncIterator[Change]:
    """A transaction that commits at the end of the block, announcements included."""
    async with db.tx() as conn:
        change = Change(conn)
        yield change
        await change.flush()


def reader(db: Database) -> AsyncEngine:
    """The same pool in autocommit: a single SELECT needs no BEGIN and no ROLLBACK."""
    return db.engine.execution_options(isolation_level="AUTOCOMMIT")
