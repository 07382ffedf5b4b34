"""Carrying out a batch of searcher operations on an experiment's trials."""

from __future__ import annotations

from typing import Any

import orjson
import sqlalchemy as sa

from determined.common.wire.search import TrialRef
from determined_registry.database.tables import experiments, trials
from determined_searchers import Shutdown, TrialCreated
from determined_service.base import topics
from determined_service.base.errors import BadRequest
from determined_service.base.json import by_name
from determined_service.ingest import missing_metric
from determined_service.lifecycle import allocations as allocating
from determined_service.lifecycle import experiments as experimenting
from determined_service.lifecycle import trial_queue
from determined_service.lifecycle.trial_end import TrialIds, end_trial
from determined_service.search import take_up
from determined_service.search.operations import OperationBatch, TrialChange
from determined_service.search.warm_start import find_warm_start, latest_checkpoints
from determined_service.state import prefect_states, states, trial_tasks
from determined_service.state.change import Change
from determined_service.state.task_kinds import TRIAL

_CREATE = sa.text(
    """
    WITH given AS (
        SELECT * FROM jsonb_to_recordset(cast(:rows AS jsonb)) AS given
            (request_id text, hparams jsonb, seed bigint, op_length bigint, closed boolean,
             checkpoint uuid, place bigint)
    ), task AS (
        INSERT INTO tasks (id, kind, owner_id)
        SELECT e.id || '.' || request_id, :kind, e.owner_id
        FROM given, experiments e WHERE e.id = :experiment_id
        ORDER BY place
    )
    INSERT INTO trials (experiment_id, request_id, task_id, state, hparams, seed, op_length, op_index,
                        op_complete, closed, stop_requested, warm_start_checkpoint)
    SELECT :experiment_id, request_id, :experiment_id || '.' || request_id, :state, hparams, seed, op_length,
           CASE WHEN op_length IS NULL THEN 0 ELSE 1 END, op_length IS NULL, closed, false,
           checkpoint
    FROM given
    ORDER BY place
    RETURNING id, request_id, hparams
    """
)


def trial_ref(row: Any, resource_pool: str) -> TrialRef:
    """The facts that the experiment flow needs to make a trial's Prefect run."""
    hparams = by_name(row.hparams)
    return TrialRef(row.id, row.request_id, f"trial {row.id}", hparams, resource_pool)


async def apply(
    change: Change, experiment: sa.Row[Any], batch: OperationBatch, *, fresh: bool = False
) -> list[TrialRef]:
    """Everything of ``batch`` but its Shutdown; ``experiment`` is its locked row (id, state, searcher,
    resource_pool).

    ``fresh``: the experiment is new, so no trials can be taken up. Returns the trials made
    (:func:`trial_ref`). Raises BadRequest for invalid operations.
    """
    reports = trial_queue.is_reports_form(experiment.searcher)
    existing = await _change_existing(change, experiment, batch, reports)
    revived, again = set[str](), list[sa.Row[Any]]()
    if not fresh:
        revived, again = await take_up.take_up(change, experiment, batch, reports)
    new = await _create(change, experiment, batch, reports, revived)
    existing += again
    task_of = await trial_tasks.renew(change, existing)
    wanting = [
        *(row.id for row in existing),
        *(row.id for row in new if reports or batch.trials[row.request_id].length),
    ]
    if experiment.state == states.ACTIVE:
        await trial_queue.request(change, wanting)
        for row in existing:
            prefect_states.awaiting_slots(change, task_of[row.id], "has its next operation")
    change.tell_search(experiment.id, *(TrialCreated(row.request_id) for row in new))
    return [trial_ref(row, experiment.resource_pool) for row in new]


async def _create(
    change: Change,
    experiment: sa.Row[Any],
    batch: OperationBatch,
    reports: bool,
    existing: set[str],
) -> list[sa.Row[Any]]:
    searcher = experiment.searcher
    rows: list[dict[str, Any]] = []
    created = [item for item in batch.created() if item[0] not in existing]
    warm_start = await find_warm_start(change.conn, searcher) if created else None
    sources = {asked.create.source for _, asked in created if asked.create and asked.create.source}
    latest = await latest_checkpoints(change.conn, experiment.id, sources)
    # In the reports form the searcher's limit, if any, is the only length.
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
                "checkpoint": latest.get(asked.create.source or "")
                or asked.create.checkpoint
                or warm_start,
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
            "kind": TRIAL,
            "state": experiment.state,
            "rows": orjson.dumps(rows).decode(),
        },
    )
    return sorted(found, key=lambda row: row.id)


async def _change_existing(
    change: Change, experiment: sa.Row[Any], batch: OperationBatch, reports: bool
) -> list[sa.Row[Any]]:
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
            wanting.append(row)
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
            "op_complete": take_up.is_known(row, asked.length),
            "progress": 0.0,
        }
    if asked.close:
        values["closed"] = True
    if asked.stop:
        values["stop_requested"] = True
    if values:
        await change.conn.execute(sa.update(trials).where(trials.c.id == row.id).values(values))
        change.notify(topics.trial(row.id))
    closed = asked.close or row.closed
    if await take_up.answer(change, experiment, row, asked.length, closed=closed):
        return False
    live = await allocating.live_of_task(change, row.task_id)
    if asked.stop and live is not None and live.state != states.REQUESTED:
        await allocating.preempt(change, live.id)
        return False
    idle = live is None or (asked.stop and live.state == states.REQUESTED)
    done = asked.stop or (asked.length is None and row.op_complete and not reports)
    if (asked.close or asked.stop) and idle and done:
        if live is not None:
            await allocating.withdraw(change, live.id, "stopped early by the searcher")
        reason = "stopped early by the searcher" if asked.stop else "closed by the searcher"
        await end_trial(change, TrialIds.of(row), states.COMPLETED, reason)
        return False
    return live is None and asked.length is not None


async def shut_down(change: Change, experiment_id: int, shutdown: Shutdown) -> str:
    """Stops the experiment because its search is over; returns the experiment's state after that."""
    if shutdown.failure:
        reason = await _failure_in_words(change, experiment_id)
        await experimenting.stop(change, experiment_id, states.STOPPING_ERROR, reason)
    elif shutdown.cancel:
        await experimenting.stop(
            change, experiment_id, states.STOPPING_CANCELED, "every trial was canceled"
        )
    else:
        await experimenting.stop(
            change, experiment_id, states.STOPPING_COMPLETED, await complete(change, experiment_id)
        )
    found = await change.conn.execute(
        sa.select(experiments.c.state).where(experiments.c.id == experiment_id)
    )
    return str(found.scalar_one())


async def complete(change: Change, experiment_id: int) -> str:
    """The reason of a search's end, with advice for its user."""
    never = await missing_metric.never_reported(change.conn, experiment_id)
    return "the search is complete" + (f"; but {never}" if never else "")


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
