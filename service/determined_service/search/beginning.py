"""Begins a search: its first trials are made in the transaction that stores its experiment.

So the trials exist when a submission is answered, also those of a paused experiment, and no crash can come
between the two. The search's driver goes on from the snapshot stored here, as after a restart. It is a
snapshot, not a digest of the operations, because the driver may run on another machine, whose mathematics may
differ in a number's last digit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from determined_searchers import create_searcher
from determined_searchers.settings import is_custom
from determined_service.base import topics
from determined_service.search import custom_search
from determined_service.search.applying import apply, shut_down
from determined_service.search.operations import OperationBatch, fold
from determined_service.state.change import Change


@dataclass(frozen=True, slots=True)
class SearchBeginning:
    """The first operations of a search, and the searcher after them (``snapshot``, JSON text).

    ``snapshot`` is None for a custom search, which a user's program runs: it has no operations yet.
    """

    batch: OperationBatch
    snapshot: str | None
    progress: float


def begin(config: Mapping[str, Any]) -> SearchBeginning:
    """The beginning of the search that the complete ``config`` describes.

    Raises SearcherError for a configuration that describes no search.
    """
    if is_custom(config["searcher"]):
        return SearchBeginning(OperationBatch(), None, 0.0)
    searcher = create_searcher(config)
    batch = fold(operation.to_json() for operation in searcher.initial_operations())
    return SearchBeginning(batch, orjson.dumps(searcher.snapshot()).decode(), searcher.progress())


# After event 0, which stands for the beginning.
_STORE = sa.text(
    """
    INSERT INTO searches (experiment_id, snapshot, snapshot_event_id, committed_event_id)
    VALUES (:id, cast(:snapshot AS jsonb), :event_id, :event_id)
    """
)
# The driver of before gets 409. Event ids go on: nobody takes a new event for an old one.
_STORE_AGAIN = sa.text(
    """
    WITH gone AS (DELETE FROM search_events WHERE experiment_id = :id),
         experiment AS (UPDATE experiments SET progress = :progress WHERE id = :id)
    UPDATE searches
    SET snapshot = cast(:snapshot AS jsonb), snapshot_event_id = 0, operations_digest = NULL,
        committed_event_id = 0, driver = NULL
    WHERE experiment_id = :id
    """
)


async def store(change: Change, experiment: sa.Row[Any], beginning: SearchBeginning) -> None:
    """Stores the search of the new ``experiment`` (id, state, searcher, resource_pool) and makes its first
    trials.

    Raises BadRequest for operations that make no sense.
    """
    event_id = -1 if beginning.snapshot is None else 0
    given = {"id": experiment.id, "snapshot": beginning.snapshot, "event_id": event_id}
    await change.conn.execute(_STORE, given)
    if beginning.snapshot is None:
        await custom_search.begin(change.conn, experiment.id)
        return
    await apply(change, experiment, beginning.batch, fresh=True)
    await _end_if_over(change, experiment, beginning)


async def store_again(change: Change, experiment: sa.Row[Any], beginning: SearchBeginning) -> None:
    """The search of the (locked) ``experiment`` begins again; trials that exist are taken up."""
    given = {"snapshot": beginning.snapshot, "progress": beginning.progress}
    await change.conn.execute(_STORE_AGAIN, given | {"id": experiment.id})
    await apply(change, experiment, beginning.batch)
    await _end_if_over(change, experiment, beginning)
    change.notify(topics.search(experiment.id))


async def _end_if_over(change: Change, experiment: sa.Row[Any], beginning: SearchBeginning) -> None:
    if beginning.batch.shutdown is not None:
        await shut_down(change, experiment.id, beginning.batch.shutdown)
