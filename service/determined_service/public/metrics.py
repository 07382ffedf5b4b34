"""Reads metrics: streams of reports, a trial's workloads, curves."""

# Parameters are named as in the API.
# ruff: noqa: N803
from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query
from starlette.responses import Response, StreamingResponse

from determined_registry.database.tables import checkpoints, metrics
from determined_service.access.dependencies import TrialReader
from determined_service.base.bounds import BigId, Id, ManyIds, ManyNames
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest
from determined_service.base.json import JsonResponse, ndjson
from determined_service.views.checkpoints import checkpoint_workload
from determined_service.views.metrics import report_json
from determined_service.views.paging import Limit, Offset, OrderBy, pagination, window
from determined_service.views.trials import require_trial, select_trials, t, trials_json
from determined_service.views.values import moment
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Metrics", "/api/v1")

CHUNK = 1000
NDJSON = "application/x-ndjson"
m = metrics.c
TrialIds = Annotated[ManyIds, Query(default_factory=list)]


async def _reports(db: Database, trial_ids: list[int], group: str | None) -> AsyncIterator[bytes]:
    """By trial, then step, then arrival. Each chunk is a query of its own: no transaction is held
    open while a slow client reads."""
    key = sa.tuple_(m.trial_id, m.group_name, m.steps_completed, m.id)
    after: tuple[Any, ...] | None = None
    wanted = sorted(set(trial_ids))
    while True:
        statement = sa.select(metrics).where(m.trial_id.in_(wanted), ~m.archived)
        if group is not None:
            statement = statement.where(m.group_name == group)
        if after is not None:
            statement = statement.where(key > after)
        async with db.tx() as conn:
            rows = (
                await conn.execute(
                    statement.order_by(m.trial_id, m.group_name, m.steps_completed, m.id).limit(
                        CHUNK
                    )
                )
            ).all()
        if rows:
            found = [report_json(row) for row in rows]
            yield ndjson({"metrics": found})
        if len(rows) < CHUNK:
            return
        last = rows[-1]
        after = (last.trial_id, last.group_name, last.steps_completed, last.id)


async def _stream(db: Database, trial_ids: list[int], group: str | None) -> Response:
    if not trial_ids:
        raise BadRequest("no trial is named: name at least one, as trialIds=<id>")
    async with db.tx() as conn:
        for trial_id in trial_ids:
            await require_trial(conn, trial_id)
    return StreamingResponse(_reports(db, trial_ids, group), media_type=NDJSON)


@router.get("/trials/metrics/trial_metrics")
async def stream_metrics(
    user: TrialReader, db: Db, trialIds: TrialIds, group: str | None = None
) -> Response:
    """Reports of one group (of every group without one), as lines of `{"result": {"metrics": […]}}`."""
    return await _stream(db, trialIds, group or None)


@router.get("/trials/metrics/training_metrics")
async def stream_training_metrics(user: TrialReader, db: Db, trialIds: TrialIds) -> Response:
    """Training reports."""
    return await _stream(db, trialIds, "training")


@router.get("/trials/metrics/validation_metrics")
async def stream_validation_metrics(user: TrialReader, db: Db, trialIds: TrialIds) -> Response:
    """Validation reports."""
    return await _stream(db, trialIds, "validation")


@router.get("/trials/{trial_id}/workloads")
async def list_workloads(
    trial_id: Id,
    user: TrialReader,
    db: Db,
    offset: Offset = 0,
    limit: Limit = 0,
    orderBy: OrderBy = "ORDER_BY_ASC",
    filter: str = "FILTER_OPTION_UNSPECIFIED",
    group: str | None = None,
    metricType: str = "METRIC_TYPE_UNSPECIFIED",
    includeBatchMetrics: bool = False,
    removeDeletedCheckpoints: bool = False,
) -> Response:
    """Reports and checkpoints of a trial, by the step at which they were made."""
    groups = {
        "METRIC_TYPE_TRAINING": ["training"],
        "METRIC_TYPE_VALIDATION": ["validation"],
    }.get(metricType, [group] if group else ["training", "validation"])
    only = filter.removeprefix("FILTER_OPTION_")
    if only == "CHECKPOINT":
        groups = []
    elif only in ("VALIDATION", "CHECKPOINT_OR_VALIDATION"):
        groups = ["validation"]
    found: list[tuple[int, int, dict[str, Any]]] = []
    async with db.tx() as conn:
        await require_trial(conn, trial_id)
        rows = await conn.execute(
            sa.select(metrics)
            .where(m.trial_id == trial_id, m.group_name.in_(groups), ~m.archived)
            .order_by(m.steps_completed, m.id)
        )
        for row in rows:
            kind = "validation" if row.group_name == "validation" else "training"
            values: dict[str, Any] = {"avgMetrics": row.metrics}
            if includeBatchMetrics and row.batch_metrics:
                values["batchMetrics"] = row.batch_metrics
            workload = {
                "metrics": values,
                "totalBatches": row.steps_completed,
                "numInputs": 0,
                "endTime": moment(row.end_time),
            }
            found.append((row.steps_completed, kind == "validation", {kind: workload}))
        if only != "VALIDATION":
            statement = sa.select(checkpoints).where(checkpoints.c.trial_id == trial_id)
            if removeDeletedCheckpoints:
                statement = statement.where(checkpoints.c.state != "DELETED")
            for row in await conn.execute(statement):
                found.append((row.steps_completed, 2, {"checkpoint": checkpoint_workload(row)}))
    found.sort(key=lambda one: one[:2], reverse=orderBy == "ORDER_BY_DESC")
    start, end = window(len(found), offset, limit)
    return JsonResponse(
        {
            "workloads": [workload for _, _, workload in found[start:end]],
            "pagination": pagination(len(found), offset, limit),
        }
    )


@router.get("/trials/time-series")
async def compare_trials(
    user: TrialReader,
    db: Db,
    trialIds: TrialIds,
    metricNames: Annotated[ManyNames, Query(default_factory=list)],
    group: str = "training",
    maxDatapoints: Id = 200,
    startBatches: BigId = 0,
    endBatches: BigId = 0,
) -> Response:
    """Curves of some trials, thinned evenly to `maxDatapoints` points each (first and last kept)."""
    answer = []
    async with db.tx() as conn:
        rows = (await conn.execute(select_trials().where(t.id.in_(trialIds)).order_by(t.id))).all()
        for trial in await trials_json(conn, rows):
            statement = (
                sa.select(m.steps_completed, m.end_time, m.metrics)
                .where(
                    m.trial_id == trial["id"],
                    m.group_name == group,
                    m.steps_completed >= startBatches,
                    ~m.archived,
                )
                .order_by(m.steps_completed, m.id)
            )
            if endBatches:
                statement = statement.where(m.steps_completed <= endBatches)
            points = _thinned((await conn.execute(statement)).all(), maxDatapoints)
            kind = "VALIDATION" if group == "validation" else "TRAINING"
            data = [
                {
                    "batches": point.steps_completed,
                    "time": moment(point.end_time),
                    "values": {
                        name: value
                        for name, value in point.metrics.items()
                        if not metricNames or name in metricNames
                    },
                }
                for point in points
            ]
            answer.append(
                {
                    "trial": trial,
                    "metrics": [{"group": group, "type": f"METRIC_TYPE_{kind}", "data": data}],
                }
            )
    return JsonResponse({"trials": answer})


def _thinned(rows: Any, most: int) -> list[Any]:
    if most <= 1 or len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(index * step)] for index in range(most)]
