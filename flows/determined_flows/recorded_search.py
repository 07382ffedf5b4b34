"""A searcher that can be brought back at any event from an older snapshot and the service's event log.

A snapshot grows with the number of trials, so it is not stored with every commit. The next one is due when
the events since the last one take about as much space as that one. So the bytes written per event do not
grow with the search, and a restart replays at most one snapshot's worth of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any
from uuid import UUID

import orjson

from determined.common.wire.search import Commit, EventItem
from determined_searchers import (
    Operation,
    SearcherError,
    create_searcher,
    event_from_json,
    restore_searcher,
)

SNAPSHOT_EVENTS = 200
"""No snapshot is taken for fewer events than this."""
EVENT_BYTES = 100
"""About the size of an event in JSON."""


class RecordedSearch:
    """The search of ``config``, at its beginning or where a stored snapshot left it.

    First :meth:`begin` (a search without a snapshot), after a restart :meth:`replay` with what was
    committed since the snapshot, then :meth:`handle` with what comes; the service's events in their
    order, each once. The operations of a replay are dropped, but must be the same as before.

    Attributes:
        last_event_id: the event after which the search stands now; 0 after :meth:`begin`, -1 before.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        snapshot: Mapping[str, Any] | None = None,
        snapshot_event_id: int = -1,
    ) -> None:
        self.last_event_id = -1 if snapshot is None else snapshot_event_id
        self._snapshot_bytes = 0 if snapshot is None else len(orjson.dumps(snapshot))
        self._events = 0  # since the snapshot
        self._digest = ""  # of the operations since the snapshot
        self._searcher = (
            create_searcher(config) if snapshot is None else restore_searcher(config, snapshot)
        )

    def begin(self) -> list[Operation]:
        """The first operations."""
        self.last_event_id = 0
        return self._note(self._searcher.initial_operations())

    def handle(self, items: Iterable[EventItem]) -> list[Operation]:
        """Pass the events ``items`` to the searcher and return its operations.

        Raises SearcherError when the search cannot go on.
        """
        operations: list[Operation] = []
        for item in items:
            operations += self._note(self._searcher.handle(event_from_json(item.event)))
            self.last_event_id = item.id
            self._events += 1
        return operations

    def _note(self, operations: list[Operation]) -> list[Operation]:
        for operation in operations:
            text = orjson.dumps(operation.to_json(), option=orjson.OPT_SORT_KEYS)
            self._digest = blake2b(self._digest.encode() + text, digest_size=16).hexdigest()
        return operations

    def replay(self, items: Iterable[EventItem]) -> None:
        """Handles committed events again. Raises SearcherError when the search cannot handle them."""
        try:
            self.handle(items)
        except Exception as error:
            raise self._differs(f"fails ({error})") from error

    def check(self, digest: str | None) -> None:
        """Raises SearcherError unless the operations since the snapshot were those of ``digest``."""
        if digest is not None and digest != self._digest:
            raise self._differs("asks for other operations than before")

    def _differs(self, how: str) -> SearcherError:
        return SearcherError(
            f"after a restart the search, replayed to event {self.last_event_id}, {how}: was its "
            "code or configuration changed meanwhile, or does the search method draw on anything "
            "but its events and its random stream?"
        )

    def commit(self, driver: UUID, operations: Iterable[Operation]) -> Commit:
        """The commit of ``operations``, the answer to the events handled so far."""
        snapshot = None
        if self._events >= max(SNAPSHOT_EVENTS, self._snapshot_bytes // EVENT_BYTES):
            snapshot = self._searcher.snapshot()
            self._snapshot_bytes = len(orjson.dumps(snapshot))
            self._events, self._digest = 0, ""
        return Commit(
            driver=driver,
            last_event_id=self.last_event_id,
            operations=[operation.to_json() for operation in operations],
            snapshot=snapshot,
            operations_digest=self._digest,
            progress=self._searcher.progress(),
        )
