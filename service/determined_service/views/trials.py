"""Trials: the query and its JSON (``trialv1Trial``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import (
    allocations,
    checkpoints,
    experiments,
    legs,
    log_policy_matches,
    metric_summaries,
    metrics,
    tasks,
    trials,
)
from determined_service.base.errors import NotFound
from determined_service.base.json import by_name
from determined_service.lifecycle.exits import Outcome
from determined_service.state import nodes
from determined_service.state.trial_tasks import FORMER, STARTED, TRIAL_TASKS, in_order, task_ids
from determined_service.views.checkpoints import best_checkpoints
from determined_service.views.lists import weight
from determined_service.views.values import display_state, moment, number, state

t = trials.c
_best = metrics.alias("best")
_latest = metrics.alias("latest")
_kept = sa.and_(checkpoints.c.trial_id == t.id, checkpoints.c.state != "DELETED")

SHOWN_STATE = display_state(
    t.state,
    allocations.c.trial_id == t.id,
    sa.select(experiments.c.unmanaged)
    .where(experiments.c.id == t.experiment_id)
    .correlate(trials)
    .scalar_subquery(),
    without="ACTIVE",  # It waits for its search.
)
STEPS = (
    sa.select(sa.func.greatest(sa.func.max(metric_summaries.c.last_steps), 0))
    .where(metric_summaries.c.trial_id == t.id)
    .scalar_subquery()
)
CHECKPOINT_COUNT = sa.select(sa.func.count()).where(_kept).scalar_subquery()
CHECKPOINT_SIZE = (
    sa.select(sa.func.coalesce(sa.func.sum(checkpoints.c.size), 0)).where(_kept).scalar_subquery()
)
_legs_took = sa.select(
    sa.func.coalesce(
        sa.func.sum(
            sa.extract(
                "epoch", sa.func.coalesce(legs.c.end_time, sa.func.now()) - legs.c.start_time
            )
        ),
        0,
    )
).where(legs.c.state != Outcome.UNPLACED)
# Time on slots: what its legs took, the running one included, but not those that their agent's cluster had no
# room for, of which some nodes may have begun. Former tasks apart: few trials have any.
WALL_CLOCK = (
    _legs_took.where(legs.c.task_id == t.task_id).correlate(trials).scalar_subquery()
    + _legs_took.join(tasks, tasks.c.id == legs.c.task_id)
    .where(tasks.c.former_of == t.id)
    .correlate(trials)
    .scalar_subquery()
)
# The log policy that matched last.
_POLICY = (
    sa.select(log_policy_matches.c.name)
    .where(log_policy_matches.c.trial_id == t.id)
    .order_by(log_policy_matches.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
_latest_metric = sa.case(
    (
        sa.func.jsonb_typeof(
            _latest.c.metrics.op("->")(experiments.c.config["searcher"]["metric"].astext)
        )
        == "number",
        _latest.c.metrics.op("->>")(experiments.c.config["searcher"]["metric"].astext).cast(
            sa.Float(53)
        ),
    )
)

LONG_VALUE_BYTES = 1024
_last = metric_summaries.c.last
# A number is small, which is known without reading it.
_IS_LONG = sa.and_(
    metric_summaries.c.type != "number",
    sa.func.octet_length(sa.cast(_last, sa.Text)) > LONG_VALUE_BYTES,
)
_SHORT_LAST = sa.case((_IS_LONG, sa.null()), else_=_last)

SORT_KEYS: dict[str, sa.ColumnElement[Any]] = {
    "UNSPECIFIED": t.id,
    "ID": t.id,
    "START_TIME": STARTED,
    "END_TIME": t.end_time,
    "STATE": t.state,
    "BEST_VALIDATION_METRIC": t.searcher_metric_value,
    "LATEST_VALIDATION_METRIC": _latest_metric,
    "BATCHES_PROCESSED": STEPS,
    "DURATION": sa.func.coalesce(t.end_time, sa.func.now()) - STARTED,
    "RESTARTS": t.restarts,
    "CHECKPOINT_SIZE": CHECKPOINT_SIZE,
}


def _weight_of(table: Any, own: sa.ColumnElement[bool], *columns: sa.ColumnElement[Any]) -> Any:
    sizes = (
        sa.select(sa.func.coalesce(sa.func.sum(weight(*columns)), 0)).select_from(table).where(own)
    )
    return sizes.correlate(trials).scalar_subquery()


WEIGHT = (
    weight(t.hparams, t.run_metadata)
    + _weight_of(
        metrics, metrics.c.id.in_((t.best_validation_id, t.latest_validation_id)), metrics.c.metrics
    )
    + _weight_of(metric_summaries, metric_summaries.c.trial_id == t.id, _SHORT_LAST)
)
"""Without the best checkpoint."""


def select_trials() -> sa.Select[Any]:
    """Every column that :func:`trials_json` reads."""
    return (
        sa.select(
            trials,
            STARTED.label("start_time"),
            FORMER.label("former_tasks"),
            tasks.c.flow_run_id,
            SHOWN_STATE.label("shown_state"),
            STEPS.label("steps"),
            CHECKPOINT_COUNT.label("checkpoint_count"),
            CHECKPOINT_SIZE.label("checkpoint_size"),
            WALL_CLOCK.label("wall_clock"),
            _POLICY.label("log_policy"),
            _best.c.metrics.label("best_metrics"),
            _best.c.steps_completed.label("best_steps"),
            _best.c.end_time.label("best_time"),
            _latest.c.metrics.label("latest_metrics"),
            _latest.c.steps_completed.label("latest_steps"),
            _latest.c.end_time.label("latest_time"),
        )
        .join(experiments, experiments.c.id == t.experiment_id)
        .join(tasks, tasks.c.id == t.task_id)
        .outerjoin(_best, _best.c.id == t.best_validation_id)
        .outerjoin(_latest, _latest.c.id == t.latest_validation_id)
    )


def select_brief_trials() -> sa.Select[Any]:
    """Their ids, their experiments' and when they began."""
    return sa.select(t.id, t.experiment_id, STARTED.label("start_time")).join(
        tasks, tasks.c.id == t.task_id
    )


def _workload(metric_values: Any, steps: int | None, time: Any) -> dict[str, Any] | None:
    if metric_values is None:
        return None
    return {
        "metrics": {"avgMetrics": metric_values},
        "totalBatches": steps,
        "numInputs": 0,
        "endTime": moment(time),
    }


def _trial_json(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "id": row.id,
        "experimentId": row.experiment_id,
        "requestId": row.request_id,
        "taskId": row.task_id,
        "taskIds": in_order(row.task_id, row.former_tasks),
        "state": state(row.shown_state),
        "reason": row.reason,
        "logPolicyMatched": row.log_policy,
        "hparams": by_name(row.hparams),
        "seed": row.seed,
        "restarts": row.restarts,
        "runCount": row.run_count,
        "externalTrialId": row.external_id,
        "startTime": moment(row.start_time),
        "endTime": moment(row.end_time),
        "wallClockTime": float(row.wall_clock),
        "totalBatchesProcessed": row.steps,
        "progress": row.progress,
        "runnerState": row.runner_state,
        "metadata": row.run_metadata,
        "searcherMetricValue": number(row.searcher_metric_value),
        "bestValidation": _workload(row.best_metrics, row.best_steps, row.best_time),
        "latestValidation": _workload(row.latest_metrics, row.latest_steps, row.latest_time),
        "checkpointCount": row.checkpoint_count,
        "totalCheckpointSize": str(row.checkpoint_size),
        "latestCheckpoint": str(row.latest_checkpoint) if row.latest_checkpoint else None,
        "warmStartCheckpointUuid": str(row.warm_start_checkpoint)
        if row.warm_start_checkpoint
        else None,
        "flowRunId": str(row.flow_run_id) if row.flow_run_id else None,
    }


async def trials_json(conn: AsyncConnection, rows: Sequence[sa.Row[Any]]) -> list[dict[str, Any]]:
    """``trialv1Trial`` of each row; ours besides: ``reason``, ``requestId``, ``runCount``,
    ``progress``, ``latestCheckpoint``, ``flowRunId``."""
    found = [_trial_json(row) for row in rows]
    ids = [row.id for row in rows]
    summaries = await summaries_of(conn, ids)
    best = await best_checkpoints(conn, ids)
    for trial in found:
        trial["summaryMetrics"] = summaries.get(trial["id"], {})
        trial["bestCheckpoint"] = best.get(trial["id"])
    return found


async def summaries_of(conn: AsyncConnection, ids: list[int]) -> dict[int, dict[str, Any]]:
    """``summaryMetrics`` of the trials that have reported metrics."""
    found: dict[int, dict[str, Any]] = {}
    if not ids:
        return found
    s = metric_summaries.c
    chosen = sa.select(
        *(column for column in s if column.name != "last"),
        _SHORT_LAST.label("last"),
        _IS_LONG.label("is_long"),
    )
    rows = await conn.execute(chosen.where(s.trial_id.in_(ids)).order_by(s.group_name, s.metric))
    for row in rows:
        groups = found.setdefault(row.trial_id, {})
        groups.setdefault(summary_key(row.group_name), {})[row.metric] = summary_json(row)
    return found


def summary_key(group: str) -> str:
    """The name under which Determined's API has a group in ``summaryMetrics``."""
    return {"training": "avg_metrics", "validation": "validation_metrics"}.get(group, group)


def summary_json(row: sa.Row[Any]) -> dict[str, Any]:
    """One metric's summary; ``sum``, ``min``, ``max`` and ``mean`` only where there are numbers. Ours:
    ``lastIsLong``, where ``last`` has more than :data:`LONG_VALUE_BYTES` of JSON and stands in the reports
    alone."""
    found: dict[str, Any] = {"type": row.type, "count": row.count, "last": row.last}
    if row.is_long:
        found["lastIsLong"] = True
    if row.finite_count:
        found |= {
            "sum": number(row.sum),
            "min": number(row.min),
            "max": number(row.max),
            "mean": number(row.sum / row.finite_count),
        }
    return found


async def weight_of(conn: AsyncConnection, trial_id: int) -> int:
    """The approximate size in bytes of :func:`get_trial`'s answer, without legs; 0 for an unknown trial."""
    found = await conn.execute(sa.select(WEIGHT).where(t.id == trial_id))
    return int(found.scalar_one_or_none() or 0)


async def get_trial(conn: AsyncConnection, trial_id: int) -> dict[str, Any]:
    """One trial's JSON with its ``legs``; raises NotFound."""
    rows = (await conn.execute(select_trials().where(t.id == trial_id))).all()
    if not rows:
        raise NotFound(f"trial {trial_id} does not exist")
    (found,) = await trials_json(conn, rows)
    found["legs"] = await _legs(conn, trial_id)
    return found


async def _legs(conn: AsyncConnection, trial_id: int) -> list[dict[str, Any]]:
    found = await conn.execute(
        sa.select(
            legs,
            allocations.c.agent_id,
            allocations.c.slot_ids,
            allocations.c.machine,
            allocations.c.nodes,
            allocations.c.exit_code,
        )
        .outerjoin(allocations, allocations.c.id == legs.c.allocation_id)
        .join(TRIAL_TASKS, TRIAL_TASKS.c.task_id == legs.c.task_id)
        .where(TRIAL_TASKS.c.trial_id == trial_id)
        .order_by(legs.c.run_id)
    )
    rows = found.all()
    return await legs_json(conn, rows)


async def legs_json(conn: AsyncConnection, rows: Sequence[sa.Row[Any]]) -> list[dict[str, Any]]:
    """Each leg with its nodes. ``rows``: of ``legs``, with agent, slots, machine, nodes and exit code of each
    one's allocation.

    A leg that its agent's cluster had no room for has used no slots, as in the accounting.
    """
    ids = [row.allocation_id for row in rows if (row.nodes or 1) > 1]
    gangs = await nodes.of_allocations(conn, ids)
    return [
        {
            "runId": row.run_id,
            "allocationId": row.allocation_id,
            "state": state(row.state),
            "reason": row.reason,
            "startTime": moment(row.start_time),
            "endTime": moment(row.end_time),
            "agentId": row.agent_id,
            "machine": row.machine,
            "slotIds": [] if row.state == Outcome.UNPLACED else row.slot_ids,
            "exitCode": row.exit_code,
            "nodes": _nodes(gangs.get(row.allocation_id, []), row.state != Outcome.UNPLACED),
        }
        for row in rows
    ]


def _nodes(rows: Iterable[sa.Row[Any]], had_slots: bool) -> list[dict[str, Any]]:
    """Of each node of a gang where it runs, and how it ended."""
    return [
        {
            "agentId": row.agent_id,
            "machine": row.machine,
            "slotIds": row.slot_ids if had_slots else [],
            "address": row.address,
            "state": state(row.state),
            "exitCode": row.exit_code,
            "exitSignal": row.exit_signal,
            "reason": row.reason,
        }
        for row in rows
    ]


async def require_tasks(conn: AsyncConnection, trial_id: int) -> list[str]:
    """Its tasks, the first one first; raises NotFound."""
    found = await task_ids(conn, trial_id)
    if not found:
        raise NotFound(f"trial {trial_id} does not exist")
    return found


async def require_trial(conn: AsyncConnection, trial_id: int) -> sa.Row[Any]:
    """Its ids (id, experiment_id, task_id) and state; raises NotFound."""
    row = (
        await conn.execute(
            sa.select(t.id, t.experiment_id, t.task_id, t.state).where(t.id == trial_id)
        )
    ).first()
    if row is None:
        raise NotFound(f"trial {trial_id} does not exist")
    return row
