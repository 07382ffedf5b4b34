"""The driver's side of a search: attach, read events, commit operations.

The experiment flow drives; all it knows is in Postgres, so another flow process may take over at any moment.
A commit is one transaction: operations applied, event id stored. The snapshot, which grows with the search,
comes with a commit only now and then; the next driver replays the events after it, and compares the digest of
the operations that follow with the one stored.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.search import (
    Attached,
    Committed,
    EventItem,
    Events,
    ExperimentFacts,
    TrialRef,
)
from determined_registry.database.tables import experiments, searches, tasks, trials, users
from determined_service.base import topics
from determined_service.base.errors import Conflict, NotFound
from determined_service.base.hub import CHANNEL
from determined_service.lifecycle import experiments as experimenting
from determined_service.search.applying import apply, shut_down, trial_ref
from determined_service.search.operations import fold
from determined_service.state import run_records, states
from determined_service.state.change import Change
from determined_service.state.events import append_event, append_events

__all__ = [
    "append_event",
    "append_events",
    "attach",
    "commit",
    "commit_quietly",
    "fail",
    "read_events",
    "require_driver",
    "trials_without_run",
]


async def attach(
    change: Change, experiment_id: int, driver: uuid.UUID, flow_run_id: uuid.UUID | None
) -> Attached:
    """From now on ``driver`` drives the search, and earlier drivers are refused.

    Raises NotFound.
    """
    experiment = await experimenting.lock_experiment(change, experiment_id)
    await run_records.taken(
        change.conn, run_records.EXPERIMENT, experiment_id, flow_run_id, run_records.QUIET_S
    )
    saved = (
        await change.conn.execute(
            sa.update(searches)
            .where(searches.c.experiment_id == experiment_id)
            .values(driver=driver)
            .returning(
                searches.c.snapshot,
                searches.c.snapshot_event_id,
                searches.c.operations_digest,
                searches.c.committed_event_id,
            )
        )
    ).one()
    change.notify(topics.search(experiment_id))
    config, owner, run = (
        await change.conn.execute(
            sa.select(experiments.c.config, users.c.username, run_records.r.flow_run_id)
            .join(users, users.c.id == experiments.c.owner_id)
            .join(run_records.kept_runs, experiments.c.id == run_records.EXPERIMENT)
            .where(experiments.c.id == experiment_id)
        )
    ).one()
    return Attached(
        experiment=ExperimentFacts(
            id=experiment.id,
            state=experiment.state,
            reason=experiment.reason,
            name=experiment.name,
            config=config,
            resource_pool=experiment.resource_pool,
            flow_run_id=run,
            owner=owner,
        ),
        snapshot=saved.snapshot,
        snapshot_event_id=saved.snapshot_event_id,
        operations_digest=saved.operations_digest,
        committed_event_id=saved.committed_event_id,
        trials_without_run=await trials_without_run(change.conn, experiment_id),
    )


async def trials_without_run(conn: AsyncConnection, experiment_id: int) -> list[TrialRef]:
    """The trials that have no Prefect run yet."""
    waiting = await conn.execute(
        sa.select(trials.c.id, trials.c.request_id, trials.c.hparams, experiments.c.resource_pool)
        .join(tasks, tasks.c.id == trials.c.task_id)
        .join(experiments, experiments.c.id == trials.c.experiment_id)
        .where(trials.c.experiment_id == experiment_id, tasks.c.flow_run_id.is_(None))
        .order_by(trials.c.id)
    )
    return [trial_ref(row, row.resource_pool) for row in waiting]


_EVENTS = sa.text(
    """
    SELECT e.state, e.reason, s.driver, coalesce(
        (SELECT jsonb_agg(jsonb_build_object('id', v.id, 'event', v.event) ORDER BY v.id)
         FROM (SELECT id, event FROM search_events
               WHERE experiment_id = :id AND id > :after ORDER BY id LIMIT 1000) v),
        '[]') AS events
    FROM experiments e JOIN searches s ON s.experiment_id = e.id
    WHERE e.id = :id
    """
)


async def read_events(
    conn: AsyncConnection, experiment_id: int, driver: uuid.UUID, after: int
) -> Events:
    """The events after the id ``after`` and the experiment's state.

    Raises NotFound, Conflict when another driver has attached.
    """
    row = (await conn.execute(_EVENTS, {"id": experiment_id, "after": after})).first()
    if row is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    require_driver(experiment_id, row.driver, driver)
    return Events(
        state=row.state,
        events=[EventItem(**item) for item in row.events],
        reason=row.reason,
        ended=row.state in states.ENDED,
    )


def require_driver(experiment_id: int, attached: uuid.UUID | None, driver: uuid.UUID) -> None:
    """Raise Conflict unless ``driver`` attached last."""
    if attached != driver:
        raise Conflict(f"another process drives the search of experiment {experiment_id} now")


async def commit(
    change: Change,
    experiment_id: int,
    driver: uuid.UUID,
    *,
    last_event_id: int,
    operations: Sequence[dict[str, Any]],
    snapshot: Any,
    operations_digest: str | None,
    progress: float,
) -> Committed:
    """Applies ``operations``, the answer to all events up to ``last_event_id``, exactly once.

    ``snapshot``: the searcher after that event, or None to keep the one there is;
    ``operations_digest``: of all operations since the snapshot, or None. A commit that was stored
    before changes nothing. Raises NotFound, Conflict when another driver
    has attached, BadRequest for operations that make no sense.
    """
    experiment = await experimenting.lock_experiment(change, experiment_id)
    # A second statement: it must see the commits of the lock's previous holder.
    search = (await change.conn.execute(_DRIVER, {"id": experiment_id})).one()
    require_driver(experiment_id, search.driver, driver)
    if last_event_id <= search.committed_event_id:
        # The first answer may have been lost, and with it the trials to make runs for.
        created = await trials_without_run(change.conn, experiment_id)
        return Committed(experiment.state, created, duplicate=True)
    created = []
    state = experiment.state
    if operations and state in states.RUNNABLE:
        batch = fold(operations)
        created = await apply(change, experiment, batch)
        if batch.shutdown is not None:
            state = await shut_down(change, experiment_id, batch.shutdown)
        elif batch.progress is not None:
            progress = batch.progress
    await change.conn.execute(
        _STORE,
        {
            "experiment_id": experiment_id,
            "snapshot": _json(snapshot),
            "digest": operations_digest,
            "last_event_id": last_event_id,
            # An experiment that has ended keeps the progress of its end.
            "progress": progress if state in states.RUNNABLE else None,
        },
    )
    change.notify(topics.experiment(experiment_id), topics.committed(experiment_id))
    return Committed(state, created)


async def commit_quietly(
    conn: AsyncConnection,
    experiment_id: int,
    driver: uuid.UUID,
    *,
    last_event_id: int,
    snapshot: Any,
    operations_digest: str | None,
    progress: float,
) -> Committed | None:
    """Store a commit without operations, the usual case: one statement, no transaction.

    None: it was stored before, or ``driver`` no longer drives, or the search does not exist; :func:`commit`
    finds out which.
    """
    found = await conn.execute(
        _STORE_QUIETLY,
        {
            "experiment_id": experiment_id,
            "driver": driver,
            "snapshot": _json(snapshot),
            "digest": operations_digest,
            "last_event_id": last_event_id,
            "progress": progress,
            "runnable": sorted(states.RUNNABLE),
            "channel": CHANNEL,
            "changed": topics.experiment(experiment_id),
            "committed": topics.committed(experiment_id),
        },
    )
    row = found.first()
    return None if row is None else Committed(row.state)


def _json(snapshot: Any) -> str | None:
    return None if snapshot is None else orjson.dumps(snapshot).decode()


_DRIVER = sa.text("SELECT driver, committed_event_id FROM searches WHERE experiment_id = :id")
# A snapshot that stays is not written again: it lies outside of the row.
_SET = """
    snapshot = coalesce(cast(:snapshot AS jsonb), snapshot),
    snapshot_event_id = CASE WHEN cast(:snapshot AS jsonb) IS NULL THEN snapshot_event_id
                             ELSE :last_event_id END,
    operations_digest = :digest, committed_event_id = :last_event_id
"""
# The experiment's row is locked first, as everywhere.
_STORE_QUIETLY = sa.text(
    f"""
    WITH experiment AS (
        UPDATE experiments
        SET progress = CASE WHEN state = ANY(:runnable) THEN :progress ELSE progress END
        WHERE id = :experiment_id
        RETURNING id, state
    ), stored AS (
        UPDATE searches s SET {_SET}
        FROM experiment
        WHERE s.experiment_id = experiment.id AND s.driver = :driver
          AND s.committed_event_id < :last_event_id
        RETURNING experiment.state
    )
    SELECT state, pg_notify(:channel, :changed), pg_notify(:channel, :committed) FROM stored
    """
)
_STORE = sa.text(
    f"""
    WITH stored AS (
        UPDATE searches SET {_SET}
        WHERE experiment_id = :experiment_id
    )
    UPDATE experiments SET progress = coalesce(cast(:progress AS float8), progress)
    WHERE id = :experiment_id
    """
)


async def fail(change: Change, experiment_id: int, driver: uuid.UUID, error: str) -> None:
    """The searcher cannot go on. Raises NotFound, Conflict when another driver has attached."""
    await experimenting.lock_experiment(change, experiment_id)
    found = await change.conn.execute(
        sa.select(searches.c.driver).where(searches.c.experiment_id == experiment_id)
    )
    require_driver(experiment_id, found.scalar_one(), driver)
    await experimenting.fail(change, experiment_id, f"the search failed: {error}")
