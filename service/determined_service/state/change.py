"""One transaction of the control half: a connection and the announcements at its end.

The last statement of a change appends the searcher's events, writes the outbox rows and announces
the topics: one statement however many there are, and the lock on the search's row comes last. A
statement costs the service about as much as all the rest of a small change, so they are few.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from determined_searchers import Event
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.hub import CHANNEL
from determined_service.state.events import APPEND, append_parameters

_OUTBOX = """
    WITH written AS (
        INSERT INTO prefect_outbox (entity, kind, payload)
        SELECT item ->> 'entity', item ->> 'kind', item -> 'payload'
        FROM jsonb_array_elements(cast(:rows AS jsonb)) WITH ORDINALITY AS given(item, place)
        ORDER BY place
    )"""
_NOTIFY = "SELECT pg_notify(:channel, topic) FROM unnest(cast(:topics AS text[])) AS topic"
_FLUSH = sa.text(f"{_OUTBOX} {_NOTIFY}")
_FLUSH_EVENTS = sa.text(f"{_OUTBOX}, {APPEND} {_NOTIFY}")


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
        self.topics[topics.OUTBOX] = None

    def tell_search(self, experiment_id: int, *events: Event) -> None:
        """Appends ``events`` to the inbox of the one search that this change is about."""
        assert not self.events or experiment_id in self.events
        self.events.setdefault(experiment_id, []).extend(event.to_json() for event in events)

    async def flush(self) -> None:
        """Write the topics and events collected for the end of the transaction."""
        if not self.topics and not self.events:
            return
        given: dict[str, Any] = {
            "channel": CHANNEL,
            "rows": orjson.dumps(self.outbox).decode(),
        }
        statement = _FLUSH
        # A change has events of one experiment only, as it locks one only.
        for experiment_id, events in self.events.items():
            self.notify(topics.search(experiment_id))
            statement = _FLUSH_EVENTS
            given |= append_parameters(experiment_id, events)
        await self.conn.execute(statement, given | {"topics": list(self.topics)})


@contextlib.asynccontextmanager
async def changing(db: Database) -> AsyncIterator[Change]:
    """A transaction that commits at the end of the block, announcements included."""
    async with db.tx() as conn:
        change = Change(conn)
        yield change
        await change.flush()


def reader(db: Database) -> AsyncEngine:
    """The same pool in autocommit: a single SELECT needs no BEGIN and no ROLLBACK."""
    return _autocommit(db.engine)


@functools.lru_cache(maxsize=8)
def _autocommit(engine: AsyncEngine) -> AsyncEngine:
    return engine.execution_options(isolation_level="AUTOCOMMIT")
