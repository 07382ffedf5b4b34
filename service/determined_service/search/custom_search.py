"""A custom search: its events wait for a search method that runs somewhere else and answers over HTTP.

The queue is what ``search_events`` has after ``searches.committed_event_id``. One answer takes the event
it is given for, and all before it, off the queue and carries its operations out, in one transaction; so
an answer is never stored by half, and the same answer sent again finds its event gone.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import Quotas
from determined.common.wire.search import Followed
from determined_registry.database.tables import searches, trials
from determined_searchers import Close, Create, Operation, Shutdown
from determined_searchers.settings import is_custom
from determined_service.base import topics
from determined_service.base.errors import BadRequest, NotFound
from determined_service.lifecycle import experiments as experimenting
from determined_service.lifecycle.quotas import require_room
from determined_service.search.applying import apply, complete
from determined_service.search.custom_wire import (
    INITIAL_OPERATIONS,
    inactive_event,
    queue_json,
    read_operations,
)
from determined_service.search.driving import require_driver, trials_without_run
from determined_service.search.operations import fold
from determined_service.search.warm_start import complete_checkpoints
from determined_service.state import states
from determined_service.state.change import Change
from determined_service.state.events import append_event

logger = logging.getLogger(__name__)


async def begin(conn: AsyncConnection, experiment_id: int) -> None:
    """Puts the first event into the new search's queue."""
    await append_event(conn, experiment_id, {"type": INITIAL_OPERATIONS})


_QUEUE = sa.text(
    """
    SELECT e.state, e.config -> 'searcher' AS searcher, coalesce(
        (SELECT jsonb_agg(jsonb_build_object('id', v.id, 'event', v.event) ORDER BY v.id)
         FROM search_events v
         WHERE v.experiment_id = e.id AND v.id > s.committed_event_id), '[]') AS queue
    FROM experiments e JOIN searches s ON s.experiment_id = e.id
    WHERE e.id = :id
    """
)


async def read_queue(conn: AsyncConnection, experiment_id: int) -> list[dict[str, Any]]:
    """The whole queue in Determined's JSON; for a paused or ended experiment, its state instead.

    An experiment that is stopping has no events: the caller waits for its final state.
    Raises NotFound, BadRequest.
    """
    row = (await conn.execute(_QUEUE, {"id": experiment_id})).first()
    if row is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    _require_custom(experiment_id, row.searcher)
    if row.state == states.ACTIVE:
        return queue_json(row.queue)
    return [] if row.state in states.STOPPING else [inactive_event(row.state)]


def _require_custom(experiment_id: int, searcher: Mapping[str, Any]) -> None:
    if not is_custom(searcher):
        raise BadRequest(
            f"experiment {experiment_id} has the searcher {searcher.get('name')!r}, which the cluster "
            f"runs itself; only a search with `searcher.name: custom` is run by a client"
        )


async def answer(
    change: Change, experiment_id: int, event_id: int, operations: Sequence[Any], quotas: Quotas
) -> list[str]:
    """Carries out ``operations`` (Determined's JSON), the answer to the event ``event_id``.

    Returns what could not be read among them, in words: that is left out, the rest is carried out.
    Raises NotFound when the event is not in the queue (any more), BadRequest for operations that make
    no sense, OverQuota for too many trials; nothing has changed then, and the event waits on.
    """
    experiment = await experimenting.lock_experiment(change, experiment_id)
    _require_custom(experiment_id, experiment.searcher)
    queue = (
        await change.conn.execute(
            sa.select(searches.c.committed_event_id, searches.c.last_event_id).where(
                searches.c.experiment_id == experiment_id
            )
        )
    ).one()
    if not max(queue.committed_event_id, 0) < event_id <= queue.last_event_id:
        raise NotFound(
            f"event {event_id} not found in the queue of experiment {experiment_id}: it was answered "
            f"already, or there has been no such event"
        )
    read, problems = read_operations(operations)
    for problem in problems:
        logger.warning("experiment %s, answer to event %s: %s", experiment_id, event_id, problem)
    progress, created = None, 0
    if experiment.state in states.RUNNABLE:
        progress = await _carry_out(change, experiment, read)
        created = sum(isinstance(operation, Create) for operation in read)
    given = {"experiment_id": experiment_id, "event_id": event_id, "progress": progress}
    # The search's row is the last one locked, as everywhere.
    await change.conn.execute(_TAKE_OFF, given | {"created": created})
    # The flow that makes the trials' runs waits on the search's topic.
    change.notify(
        topics.experiment(experiment_id),
        topics.search(experiment_id),
        topics.committed(experiment_id),
    )
    if created:
        await require_room(change.conn, quotas, experiment.owner_id, "trials", "stored_trials")
    return problems


_TAKE_OFF = sa.text(
    """
    WITH experiment AS (
        UPDATE experiments SET progress = coalesce(cast(:progress AS float8), progress),
                               trials_asked_for = trials_asked_for + :created
        WHERE id = :experiment_id
    )
    UPDATE searches SET committed_event_id = :event_id WHERE experiment_id = :experiment_id
    """
)


async def _carry_out(
    change: Change, experiment: sa.Row[Any], operations: Sequence[Operation]
) -> float | None:
    """Returns the progress to store, if the operations give one and the search goes on."""
    await _check_new_trials(change, experiment.id, operations)
    batch = fold([operation.to_json() for operation in operations])
    unused = [
        trial
        for trial in batch.trials.values()
        if trial.create and trial.close and not trial.length
    ]
    for trial in unused:
        trial.close = False
    await apply(change, experiment, batch)
    # A trial that is made only to be closed has no process that could end it.
    closing = [Close(trial.create.request_id).to_json() for trial in unused if trial.create]
    await apply(change, experiment, fold(closing))
    if batch.shutdown is None:
        return batch.progress
    await _shut_down(change, experiment.id, batch.shutdown)
    return None


async def _check_new_trials(
    change: Change, experiment_id: int, operations: Sequence[Operation]
) -> None:
    new = [operation for operation in operations if isinstance(operation, Create)]
    if not new:
        return
    names = [operation.request_id for operation in new]
    taken = {name for name, count in Counter(names).items() if count > 1}
    found = await change.conn.execute(
        sa.select(trials.c.request_id).where(
            trials.c.experiment_id == experiment_id, trials.c.request_id.in_(names)
        )
    )
    taken |= set(found.scalars())
    if taken:
        raise BadRequest(
            f"createTrial: the request id {', '.join(sorted(taken))} is that of another trial; each "
            "createTrial needs a new one"
        )
    wanted = {uuid.UUID(operation.checkpoint) for operation in new if operation.checkpoint}
    missing = wanted - await complete_checkpoints(change.conn, wanted)
    if missing:
        raise BadRequest(
            f"createTrial.checkpoint: no complete checkpoint {', '.join(sorted(map(str, missing)))}"
        )


async def _shut_down(change: Change, experiment_id: int, shutdown: Shutdown) -> None:
    to, reason = states.STOPPING_COMPLETED, await complete(change, experiment_id)
    if shutdown.failure:
        to, reason = states.STOPPING_ERROR, "the search method ended the search as failed"
    elif shutdown.cancel:
        to, reason = states.STOPPING_CANCELED, "the search method canceled the search"
    await experimenting.stop(change, experiment_id, to, reason)


_FOLLOW = sa.text(
    """
    SELECT e.state, e.reason, s.driver
    FROM experiments e JOIN searches s ON s.experiment_id = e.id
    WHERE e.id = :id
    """
)


async def follow(conn: AsyncConnection, experiment_id: int, driver: uuid.UUID) -> Followed:
    """The trials that have no Prefect run yet, and the experiment's state.

    Raises NotFound, Conflict when another driver has attached.
    """
    row = (await conn.execute(_FOLLOW, {"id": experiment_id})).first()
    if row is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    require_driver(experiment_id, row.driver, driver)
    return Followed(
        state=row.state,
        trials=await trials_without_run(conn, experiment_id),
        reason=row.reason,
        ended=row.state in states.ENDED,
    )
