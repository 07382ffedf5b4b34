"""The driver's side of a search: attach, read events, commit operations.

The experiment flow drives; all it knows is in Postgres, so another flow process may take over at
any moment. A commit is one transaction: operations applied, snapshot and event id stored.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.tables import experiments, searches, trials
from determined_searchers import Shutdown, TrialCreated
from determined_service.control import allocations as allocating
from determined_service.control import experiments as experimenting
from determined_service.control import lifecycle as states
from determined_service.control.change import Change
from determined_service.control.events import append_event, append_events
from determined_service.control.legs import end_trial
from determined_service.control.operations import Batch, TrialChange, fold
from determined_service.control.warm_start import find_warm_start
from determined_service.errors import BadRequest, Conflict, NotFound
from determined_service.hub import CHANNEL

__all__ = [
    "append_event",
    "append_events",
    "attach",
    "commit",
    "commit_quietly",
    "fail",
    "read_events",
]

_CREATE = sa.text(
    """
    INSERT INTO trials (experiment_id, request_id, state, hparams, seed, op_length, op_index,
                        op_complete, closed, stop_requested, warm_start_checkpoint)
    SELECT :experiment_id, request_id, :state, hparams, seed, op_length,
           CASE WHEN op_length IS NULL THEN 0 ELSE 1 END, op_length IS NULL, closed, false,
           checkpoint
    FROM jsonb_to_recordset(cast(:rows AS jsonb)) AS given
         (request_id text, hparams jsonb, seed bigint, op_length bigint, closed boolean,
          checkpoint uuid, place bigint)
    ORDER BY place
    RETURNING id, request_id, hparams
    """
)


def trial_ref(row: Any) -> dict[str, Any]:
    """What the experiment flow needs to make a trial's Prefect run."""
    return {
        "trial_id": row.id,
        "request_id": row.request_id,
        "name": f"trial {row.id}",
        "hparams": row.hparams,
    }


async def attach(
    change: Change, experiment_id: int, driver: uuid.UUID, flow_run_id: uuid.UUID | None
) -> dict[str, Any]:
    """``driver`` drives the search from now on; whoever did so before is refused from then on.

    Raises NotFound.
    """
    experiment = await experimenting.lock_experiment(change, experiment_id)
    if flow_run_id is not None and flow_run_id != experiment.flow_run_id:
        await change.conn.execute(
            sa.update(experiments)
            .where(experiments.c.id == experiment_id)
            .values(flow_run_id=flow_run_id)
        )
    saved = (
        await change.conn.execute(
            sa.update(searches)
            .where(searches.c.experiment_id == experiment_id)
            .values(driver=driver, driver_seen_at=sa.func.now())
            .returning(searches.c.snapshot, searches.c.committed_event_id)
        )
    ).one()
    change.notify(f"search:{experiment_id}")
    config = (
        await change.conn.execute(
            sa.select(experiments.c.config).where(experiments.c.id == experiment_id)
        )
    ).scalar_one()
    waiting = await change.conn.execute(
        sa.select(trials.c.id, trials.c.request_id, trials.c.hparams)
        .where(trials.c.experiment_id == experiment_id, trials.c.flow_run_id.is_(None))
        .order_by(trials.c.id)
    )
    return {
        "experiment": {
            "id": experiment.id,
            "state": experiment.state,
            "reason": experiment.reason,
            "name": experiment.name,
            "config": config,
            "resource_pool": experiment.resource_pool,
            "flow_run_id": flow_run_id or experiment.flow_run_id,
        },
        "snapshot": saved.snapshot,
        "committed_event_id": saved.committed_event_id,
        "trials_without_run": [trial_ref(row) for row in waiting],
    }


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
) -> dict[str, Any]:
    """The events after the id ``after`` and the experiment's state.

    Raises NotFound, Conflict when another driver has attached.
    """
    row = (await conn.execute(_EVENTS, {"id": experiment_id, "after": after})).first()
    if row is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    _require_driver(experiment_id, row.driver, driver)
    return {
        "events": row.events,
        "state": row.state,
        "reason": row.reason,
        "ended": row.state in states.TERMINAL,
    }


def _require_driver(experiment_id: int, attached: uuid.UUID | None, driver: uuid.UUID) -> None:
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
    progress: float,
) -> dict[str, Any]:
    """Applies ``operations``, the answer to all events up to ``last_event_id``, exactly once.

    A commit that was stored before changes nothing. Raises NotFound, Conflict when another driver
    has attached, BadRequest for operations that make no sense.
    """
    experiment = await experimenting.lock_experiment(change, experiment_id)
    # A second statement: it must see what the lock's previous holder committed.
    search = (await change.conn.execute(_DRIVER, {"id": experiment_id})).one()
    _require_driver(experiment_id, search.driver, driver)
    if last_event_id <= search.committed_event_id:
        return {"trials": [], "state": experiment.state, "duplicate": True}
    created: list[dict[str, Any]] = []
    state = experiment.state
    if operations and state in states.RUNNABLE:
        batch = fold(operations)
        created = await _apply(change, experiment, batch)
        if batch.shutdown is not None:
            state = await _shut_down(change, experiment_id, batch.shutdown)
        elif batch.progress is not None:
            progress = batch.progress
    await change.conn.execute(
        _STORE,
        {
            "experiment_id": experiment_id,
            "snapshot": orjson.dumps(snapshot).decode(),
            "last_event_id": last_event_id,
            # An experiment that has ended keeps the progress of its end.
            "progress": progress if state in states.RUNNABLE else None,
        },
    )
    # `search:` wakes trials that wait for their next operation.
    change.notify(f"experiment:{experiment_id}", f"search:{experiment_id}")
    return {"trials": created, "state": state}


async def commit_quietly(
    conn: AsyncConnection,
    experiment_id: int,
    driver: uuid.UUID,
    *,
    last_event_id: int,
    snapshot: Any,
    progress: float,
) -> dict[str, Any] | None:
    """A commit without operations, which is most of them: one statement, no transaction.

    None: it was stored before, or ``driver`` drives no more, or there is no such search;
    :func:`commit` knows which.
    """
    found = await conn.execute(
        _STORE_QUIETLY,
        {
            "experiment_id": experiment_id,
            "driver": driver,
            "snapshot": orjson.dumps(snapshot).decode(),
            "last_event_id": last_event_id,
            "progress": progress,
            "runnable": sorted(states.RUNNABLE),
            "channel": CHANNEL,
        },
    )
    row = found.first()
    return None if row is None else {"trials": [], "state": row.state}


_DRIVER = sa.text("SELECT driver, committed_event_id FROM searches WHERE experiment_id = :id")
# The experiment's row is locked first, as everywhere.
_STORE_QUIETLY = sa.text(
    """
    WITH experiment AS (
        UPDATE experiments
        SET progress = CASE WHEN state = ANY(:runnable) THEN :progress ELSE progress END
        WHERE id = :experiment_id
        RETURNING id, state
    ), stored AS (
        UPDATE searches s
        SET snapshot = cast(:snapshot AS jsonb), committed_event_id = :last_event_id,
            driver_seen_at = now()
        FROM experiment
        WHERE s.experiment_id = experiment.id AND s.driver = :driver
          AND s.committed_event_id < :last_event_id
        RETURNING experiment.state
    )
    SELECT state, pg_notify(:channel, 'experiment:' || :experiment_id),
           pg_notify(:channel, 'search:' || :experiment_id)
    FROM stored
    """
)
_STORE = sa.text(
    """
    WITH stored AS (
        UPDATE searches
        SET snapshot = cast(:snapshot AS jsonb), committed_event_id = :last_event_id,
            driver_seen_at = now()
        WHERE experiment_id = :experiment_id
    )
    UPDATE experiments SET progress = coalesce(cast(:progress AS float8), progress)
    WHERE id = :experiment_id
    """
)


async def _apply(change: Change, experiment: sa.Row[Any], batch: Batch) -> list[dict[str, Any]]:
    reports = allocating.is_reports_form(experiment.searcher)
    existing = await _change_existing(change, experiment, batch, reports)
    new = await _create(change, experiment, batch, reports)
    wanting = [
        *existing,
        *(row.id for row in new if reports or batch.trials[row.request_id].length),
    ]
    if experiment.state == states.ACTIVE:
        await allocating.request(change, wanting)
    change.tell_search(experiment.id, *(TrialCreated(row.request_id) for row in new))
    return [trial_ref(row) for row in new]


async def _create(
    change: Change, experiment: sa.Row[Any], batch: Batch, reports: bool
) -> list[sa.Row[Any]]:
    searcher = experiment.searcher
    rows: list[dict[str, Any]] = []
    created = batch.created()
    warm_start = await find_warm_start(change.conn, searcher) if created else None
    # In the reports form the searcher's limit, where there is one, is the only length there is.
    limit = searcher.get("max_time") if reports else None
    for request_id, asked in created:
        assert asked.create is not None
        if asked.targets > 1:
            raise BadRequest(f"trial {request_id}: several operations at once")
        rows.append(
            {
                "request_id": request_id,
                "hparams": asked.create.hparams,
                "seed": asked.create.seed,
                "checkpoint": asked.create.checkpoint or warm_start,
                "op_length": asked.length or limit,
                "closed": asked.close,
                "place": len(rows),
            }
        )
    if not rows:
        return []
    found = await change.conn.execute(
        _CREATE,
        {
            "experiment_id": experiment.id,
            "state": experiment.state,
            "rows": orjson.dumps(rows).decode(),
        },
    )
    return sorted(found, key=lambda row: row.id)


async def _change_existing(
    change: Change, experiment: sa.Row[Any], batch: Batch, reports: bool
) -> list[int]:
    """Applies the operations on trials made earlier; returns the trials that now want slots."""
    known = batch.known()
    if not known:
        return []
    found = await change.conn.execute(
        sa.select(trials)
        .where(trials.c.experiment_id == experiment.id, trials.c.request_id.in_(known))
        .order_by(trials.c.id)
        .with_for_update(key_share=True)
    )
    rows = list(found)
    missing = set(known) - {row.request_id for row in rows}
    if missing:
        raise BadRequest(f"no such trial: {', '.join(sorted(missing))}")
    wanting = []
    for row in rows:
        # The trial may have ended while the searcher was thinking.
        if row.state in states.TERMINAL:
            continue
        asked = batch.trials[row.request_id]
        if await _change_one(change, experiment, row, asked, reports):
            wanting.append(row.id)
    return wanting


async def _change_one(
    change: Change, experiment: sa.Row[Any], row: sa.Row[Any], asked: TrialChange, reports: bool
) -> bool:
    values: dict[str, Any] = {}
    if asked.length is not None:
        if asked.targets > 1 or not row.op_complete:
            raise BadRequest(f"trial {row.request_id}: several operations at once")
        values |= {
            "op_length": asked.length,
            "op_index": row.op_index + 1,
            "op_complete": False,
            "progress": 0.0,
        }
    if asked.close:
        values["closed"] = True
    if asked.stop:
        values["stop_requested"] = True
    if values:
        await change.conn.execute(sa.update(trials).where(trials.c.id == row.id).values(values))
        change.notify(f"trial:{row.id}")
    live = await allocating.live_of_trial(change, row.id)
    if asked.stop and live is not None and live.state != states.REQUESTED:
        await allocating.preempt(change, live.id)
        return False
    idle = live is None or (asked.stop and live.state == states.REQUESTED)
    done = asked.stop or (asked.length is None and row.op_complete and not reports)
    if (asked.close or asked.stop) and idle and done:
        if live is not None:
            await allocating.withdraw(change, live.id, "stopped early by the searcher")
        reason = "stopped early by the searcher" if asked.stop else "closed by the searcher"
        await end_trial(change, experiment.id, row.id, row.request_id, states.COMPLETED, reason)
        return False
    return live is None and asked.length is not None


async def _shut_down(change: Change, experiment_id: int, shutdown: Shutdown) -> str:
    if shutdown.failure:
        reason = await _failure_in_words(change, experiment_id)
        await experimenting.stop(change, experiment_id, states.STOPPING_ERROR, reason)
    elif shutdown.cancel:
        await experimenting.stop(
            change, experiment_id, states.STOPPING_CANCELED, "every trial was canceled"
        )
    else:
        await experimenting.stop(
            change, experiment_id, states.STOPPING_COMPLETED, "the search is complete"
        )
    found = await change.conn.execute(
        sa.select(experiments.c.state).where(experiments.c.id == experiment_id)
    )
    return str(found.scalar_one())


async def _failure_in_words(change: Change, experiment_id: int) -> str:
    found = await change.conn.execute(
        sa.select(trials.c.id, trials.c.reason)
        .where(trials.c.experiment_id == experiment_id, trials.c.state == states.ERROR)
        .order_by(trials.c.end_time.desc())
    )
    failed = list(found)
    if not failed:
        return "the search failed"
    last = f"trial {failed[0].id}: {failed[0].reason}"
    return last if len(failed) == 1 else f"all {len(failed)} trials failed; the last, {last}"


async def fail(change: Change, experiment_id: int, driver: uuid.UUID, error: str) -> None:
    """The searcher cannot go on. Raises NotFound, Conflict when another driver has attached."""
    await experimenting.lock_experiment(change, experiment_id)
    found = await change.conn.execute(
        sa.select(searches.c.driver).where(searches.c.experiment_id == experiment_id)
    )
    _require_driver(experiment_id, found.scalar_one(), driver)
    await experimenting.fail(change, experiment_id, f"the search failed: {error}")
