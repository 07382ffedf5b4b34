"""Reads metrics: streams of reports, a trial's workloads, curves."""

# Parameters are named as in the API.
# ruff: noqa: N803
from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_registry.database.tables import checkpoints, metrics, trials
from determined_service.access.dependencies import TrialReader
from determined_service.base.bounds import BigId, Id, ManyIds, ManyNames
from determined_service.base.checks import check_int
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest
from determined_service.base.json import ndjson
from determined_service.base.streams import Stream
from determined_service.public import curve_filter
from determined_service.views.checkpoints import checkpoint_workload, select_workloads
from determined_service.views.curves import POINT_BYTES, Curve, thinned
from determined_service.views.lists import answer_list, weight
from determined_service.views.metrics import WEIGHT as REPORT_WEIGHT
from determined_service.views.metrics import report_json
from determined_service.views.paging import Limit, Offset, OrderBy
from determined_service.views.trials import (
    WEIGHT,
    require_trial,
    select_brief_trials,
    select_trials,
    t,
    trials_json,
)
from determined_service.views.values import moment
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Metrics", "/api/v1")

CHUNK = 1000
NDJSON = "application/x-ndjson"
m = metrics.c
TrialIds = Annotated[ManyIds, Query(default_factory=list)]
FEWEST_EXTREMES = 4
"""The first and the last report, and one stretch's two extremes."""


_KEY = (m.trial_id, m.group_name, m.steps_completed, m.id)
_BEFORE = (sa.func.sum(REPORT_WEIGHT).over(order_by=_KEY) - REPORT_WEIGHT).label("before")


async def _reports(db: Database, trial_ids: list[int], group: str | None) -> AsyncIterator[bytes]:
    """By trial, then step, then arrival. Each chunk is a separate query: no transaction is held open while a
    slow client reads."""
    after: tuple[Any, ...] | None = None
    wanted = sorted(set(trial_ids))
    while True:
        statement = sa.select(metrics, REPORT_WEIGHT.label("weight"), _BEFORE)
        statement = statement.where(m.trial_id.in_(wanted), ~m.archived)
        if group is not None:
            statement = statement.where(m.group_name == group)
        if after is not None:
            statement = statement.where(sa.tuple_(*_KEY) > after)
        chunk = statement.order_by(*_KEY).limit(CHUNK).subquery("chunk")
        # A report may be of megabytes: no more of them than one after a piece's size.
        fitting = sa.select(chunk).where(chunk.c.before < limits.ANSWER_PIECE_BYTES)
        order = [chunk.c[column.key] for column in _KEY]
        async with db.tx() as conn:
            rows = (await conn.execute(fitting.order_by(*order))).all()
        if not rows:
            return
        async with db.answers.hold(sum(row.weight for row in rows)):
            yield ndjson({"metrics": [report_json(row) for row in rows]})
        last = rows[-1]
        after = (last.trial_id, last.group_name, last.steps_completed, last.id)


async def _stream(db: Database, trial_ids: list[int], group: str | None) -> Response:
    if not trial_ids:
        raise BadRequest("no trial is named: name at least one, as trialIds=<id>")
    async with db.tx() as conn:
        for trial_id in trial_ids:
            await require_trial(conn, trial_id)
    return Stream(_reports(db, trial_ids, group), media_type=NDJSON)


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
    chosen = _workloads(
        trial_id,
        groups,
        batch_metrics=includeBatchMetrics,
        stored=only != "VALIDATION",
        deleted=not removeDeletedCheckpoints,
    )
    order: list[sa.ColumnElement[Any]] = [chosen.c.steps, chosen.c.kind, chosen.c.id]
    statement = sa.select(chosen.c.key)
    if orderBy == "ORDER_BY_DESC":
        order = [column.desc() for column in order]

    async def workloads(conn: AsyncConnection, rows: Sequence[sa.Row[Any]]) -> list[dict[str, Any]]:
        found = await _reported(conn, [row.key for row in rows], includeBatchMetrics)
        return [found[row.key] for row in rows if row.key in found]

    async with db.tx() as conn:
        await require_trial(conn, trial_id)
    return await answer_list(
        db,
        "workloads",
        statement.order_by(*order),
        chosen.c.key,
        chosen.c.weight,
        workloads,
        offset=offset,
        limit=limit,
    )


_TRAINING, _VALIDATION, _CHECKPOINT = range(3)


def _workloads(
    trial_id: int, groups: list[str], *, batch_metrics: bool, stored: bool, deleted: bool
) -> sa.Subquery:
    """The query of reports and checkpoints: `key`, their order, and their sizes."""
    heavy = weight(m.metrics, *([m.batch_metrics] if batch_metrics else []))
    kind = sa.case((m.group_name == "validation", _VALIDATION), else_=_TRAINING)
    chosen = sa.select(
        sa.cast(m.id, sa.Text).label("key"),
        m.id,
        m.steps_completed.label("steps"),
        kind.label("kind"),
        heavy.label("weight"),
    ).where(m.trial_id == trial_id, m.group_name.in_(groups), ~m.archived)
    if not stored:
        return chosen.subquery("workload")
    c = checkpoints.c
    of_trial = sa.select(
        sa.cast(c.uuid, sa.Text),
        sa.literal(0),
        c.steps_completed,
        sa.literal(_CHECKPOINT),
        weight(c.resources, c.checksums, c.executable, c.user_metadata),
    ).where(c.trial_id == trial_id)
    if not deleted:
        of_trial = of_trial.where(c.state != "DELETED")
    return sa.union_all(chosen, of_trial).subquery("workload")


async def _reported(
    conn: AsyncConnection, keys: list[str], batch_metrics: bool
) -> dict[str, dict[str, Any]]:
    """The workloads of these keys."""
    found: dict[str, dict[str, Any]] = {}
    ids = [int(key) for key in keys if key.isdigit()]
    for row in await conn.execute(sa.select(metrics).where(m.id.in_(ids))):
        values: dict[str, Any] = {"avgMetrics": row.metrics}
        if batch_metrics and row.batch_metrics:
            values["batchMetrics"] = row.batch_metrics
        kind = "validation" if row.group_name == "validation" else "training"
        found[str(row.id)] = {
            kind: {
                "metrics": values,
                "totalBatches": row.steps_completed,
                "numInputs": 0,
                "endTime": moment(row.end_time),
            }
        }
    uuids = [key for key in keys if not key.isdigit()]
    wanted = select_workloads().where(checkpoints.c.uuid.in_(uuids))
    for row in await conn.execute(wanted) if uuids else ():
        found[str(row.uuid)] = {"checkpoint": checkpoint_workload(row)}
    return found


@router.get("/trials/time-series")
async def compare_trials(
    user: TrialReader,
    request: Request,
    db: Db,
    trialIds: TrialIds,
    metricNames: Annotated[ManyNames, Query(default_factory=list)],
    metricIds: Annotated[ManyNames, Query(default_factory=list)],
    extremesOf: Annotated[ManyNames, Query(default_factory=list)],
    group: str = "",
    metricType: str = "METRIC_TYPE_UNSPECIFIED",
    maxDatapoints: Id = 200,
    startBatches: BigId = 0,
    endBatches: BigId = 0,
    quick: bool = False,
    columns: bool = False,
) -> Response:
    """Curves of some trials, thinned evenly to `maxDatapoints` points each (first and last kept; 0 and 1 mean
    10,000).

    A trial has one curve for each group: that of `metricNames` in `group` (or `metricType`; else "training"),
    and those of `metricIds`, each `group.name`. Where neither is given, all metrics of the group.

    Ours: `extremesOf` names, as `group.name`, one of a group's requested metrics whose curve is thinned so
    that no spike is lost: of each stretch of steps, the reports with its least and its greatest value stay.
    Reports without this metric, and values of more than 64 bytes, are left out then. `quick=true` answers
    at once instead, with the first report of each stretch. `columns=true` answers a quarter of the bytes:
    in place of `data`, `batches` (a list of numbers), `seconds` (since the trial began) and `values` (a list
    for each name; null where a report lacks it); and of the trial only `id` and `experimentId`. It needs
    `extremesOf` for each group.

    `timeSeriesFilter.integerRange.…` (`lt`, `lte`, `gt`, `gte`, `incl`, `notIn`) and `.doubleRange.…` choose
    points by their batches; with `timeSeriesFilter.name=time`, `timeSeriesFilter.timeRange.…` by their times.
    """
    check_int(maxDatapoints, "maxDatapoints", most=limits.POINTS_OF_CURVE)
    points = maxDatapoints if maxDatapoints > 1 else limits.POINTS_OF_CURVE
    of_groups = _names_of_groups(group or _group_of_type(metricType), metricNames, metricIds)
    extreme = _extreme(of_groups, extremesOf, points)
    if columns and of_groups.keys() != extreme.keys():
        raise BadRequest(
            "columns: only thinned curves are columns: name a metric of each group in extremesOf"
        )
    chosen = [~m.archived, *curve_filter.conditions(request.query_params.multi_items())]
    if startBatches:
        chosen.append(m.steps_completed >= startBatches)
    if endBatches:
        chosen.append(m.steps_completed <= endBatches)

    async def curves(conn: AsyncConnection, rows: Sequence[sa.Row[Any]]) -> list[dict[str, Any]]:
        found = []
        shown = (
            [{"id": row.id, "experimentId": row.experiment_id} for row in rows]
            if columns
            else await trials_json(conn, rows)
        )
        ids = [trial["id"] for trial in shown]
        kept = {
            name: await thinned(
                conn,
                ids,
                [m.group_name == name, *chosen],
                metric,
                of_groups[name],
                points,
                quick=quick,
            )
            for name, metric in extreme.items()
        }
        for place, trial in enumerate(shown):
            curves = []
            for name, names in of_groups.items():
                wanted = [m.trial_id == trial["id"], m.group_name == name, *chosen]
                curve = kept.get(name, {}).get(trial["id"])
                if curve is None:
                    curve = _of_reports(await _thinned(conn, wanted, points), names)
                began = rows[place].start_time if columns else None
                data = _columns(curve, began) if columns else {"data": _data(curve)}
                curves.append({"group": name, "type": _type_of_group(name), **data})
            found.append({"trial": trial, "metrics": curves})
        return found

    statement = select_brief_trials() if columns else select_trials()
    others = of_groups.keys() - extreme.keys()
    heavy = points * POINT_BYTES * len(extreme) + (sa.literal(0) if columns else WEIGHT)
    if others:
        heavy += _points_weight([m.group_name.in_(others), *chosen], points * len(others))
    return await answer_list(
        db,
        "trials",
        statement.where(t.id.in_(trialIds)).order_by(t.id),
        t.id,
        heavy,
        curves,
        offset=0,
        limit=-1,
        keys=sa.select(t.id).where(t.id.in_(trialIds)).order_by(t.id),
    )


def _group_of_type(metric_type: str) -> str:
    return "validation" if metric_type == "METRIC_TYPE_VALIDATION" else "training"


def _names_of_groups(group: str, names: list[str], ids: list[str]) -> dict[str, set[str]]:
    """The requested metrics, by group; an empty set means all of the group. Raises BadRequest."""
    found: dict[str, set[str]] = {group: set(names)} if names or not ids else {}
    for one in ids:
        of, dot, name = one.partition(".")
        if not (of and dot and name):
            raise BadRequest(f"metricIds: {show(one)} is not of the form group.name")
        found.setdefault(of, set()).add(name)
    if len(found) > limits.GROUPS_OF_CURVES:
        raise BadRequest(
            f"metricIds: {len(found)} groups of metrics, at most {limits.GROUPS_OF_CURVES} are answered "
            "at once; ask for the others by themselves"
        )
    return found


def _extreme(of_groups: dict[str, set[str]], ids: list[str], points: int) -> dict[str, str]:
    """By group, the requested metric whose extremes are kept. Raises BadRequest."""
    found: dict[str, str] = {}
    for one in ids:
        group, _, name = one.partition(".")
        if name not in of_groups.get(group, set()):
            raise BadRequest(
                f"extremesOf: {show(one)} is not among the requested metrics: name it in metricIds too"
            )
        if found.setdefault(group, name) != name:
            raise BadRequest(
                f"extremesOf: {show(one)} is the second metric of its group; one of each group can keep its "
                "extremes: ask for the others by themselves"
            )
    if found and points < FEWEST_EXTREMES:
        raise BadRequest(
            f"maxDatapoints: {points} points cannot keep extremes; ask for {FEWEST_EXTREMES} or more"
        )
    return found


def _type_of_group(name: str) -> str:
    return f"METRIC_TYPE_{'VALIDATION' if name == 'validation' else 'TRAINING'}"


def _of_reports(reports: Sequence[sa.Row[Any]], names: Collection[str]) -> Curve:
    """Without ``names``: every metric of the reports."""
    shown = names or {name for report in reports for name in report.metrics}
    return Curve(
        [report.steps_completed for report in reports],
        [report.end_time for report in reports],
        {name: [report.metrics.get(name) for report in reports] for name in shown},
    )


def _data(curve: Curve) -> list[dict[str, Any]]:
    """The points of ``v1DownsampledMetrics``."""
    return [
        {
            "batches": steps,
            "time": moment(curve.times[place]),
            "values": {
                name: values[place]
                for name, values in curve.values.items()
                if values[place] is not None
            },
        }
        for place, steps in enumerate(curve.steps)
    ]


def _columns(curve: Curve, began: datetime.datetime | None) -> dict[str, Any]:
    """``began``: of the trial; None: it has not begun."""
    start = began or (curve.times[0] if curve.times else None)
    return {
        "batches": curve.steps,
        "seconds": [round((time - start).total_seconds(), 3) for time in curve.times if start],
        "values": curve.values,
    }


def _points_weight(chosen: list[sa.ColumnElement[bool]], points: int) -> sa.ColumnElement[int]:
    """The approximate size of a trial's curves: the mean of its reports, times the number of points."""
    of_trial = sa.select(
        sa.func.coalesce(sa.func.avg(weight(m.metrics)) * sa.func.least(sa.func.count(), points), 0)
    ).where(m.trial_id == t.id, *chosen)
    return sa.cast(of_trial.correlate(trials).scalar_subquery(), sa.BigInteger)


async def _thinned(
    conn: AsyncConnection, wanted: list[sa.ColumnElement[bool]], most: int
) -> Sequence[sa.Row[Any]]:
    """At most ``most`` of the reports, evenly chosen, the first and the last among them."""
    order = (m.steps_completed, m.id)
    counted = await conn.execute(sa.select(sa.func.count()).select_from(metrics).where(*wanted))
    count = counted.scalar_one()
    place = (sa.func.row_number().over(order_by=order) - 1).label("place")
    placed = sa.select(m.id, place).where(*wanted).subquery("placed")
    statement = sa.select(m.steps_completed, m.end_time, m.metrics).order_by(*order)
    if most > 1 and count > most:
        step = (count - 1) / (most - 1)
        places = [round(index * step) for index in range(most)]
        chosen = sa.select(placed.c.id).where(placed.c.place.in_(places))
        statement = statement.where(m.id.in_(chosen))
    else:
        statement = statement.where(*wanted)
    return (await conn.execute(statement)).all()
