"""The points of charts, as JSON for the pages' script."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from determined.common.wire import limits
from determined_service.base.aside import aside
from determined_service.base.bounds import Id
from determined_service.base.errors import BadRequest
from determined_service.base.json import JsonResponse
from determined_service.front.rendering import PageRouter
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

MOST_CURVES = 200
"""Trials of one chart."""
POINTS = 300
"""Points of one curve, unless there are many."""
ALL_POINTS = 30_000
"""Points of all curves together."""


@router.get("/curves/experiments/{experiment_id}", include_in_schema=False)
async def of_experiment(
    visit: Visitor, experiment_id: Id, metric: str = "", x: str = "steps"
) -> Response:
    """The searcher's metric (or another validation ``metric``) of the experiment's best trials."""
    experiment = (await visit.get(f"/experiments/{experiment_id}"))["experiment"]
    searcher = experiment["config"].get("searcher", {})
    smaller = searcher.get("smaller_is_better", True)
    found = await visit.get(
        f"/experiments/{experiment_id}/trials",
        {
            "sortBy": "SORT_BY_BEST_VALIDATION_METRIC",
            "orderBy": "ORDER_BY_ASC" if smaller else "ORDER_BY_DESC",
            "limit": MOST_CURVES,
        },
    )
    name = metric or f"validation.{experiment['searcherMetric'] or 'loss'}"
    ids = [trial["id"] for trial in found["trials"]]
    return JsonResponse(await _curves(visit, ids, name if "." in name else f"validation.{name}", x))


@router.get("/curves/trials", include_in_schema=False)
async def of_trials(
    visit: Visitor,
    id: Annotated[list[Id], Query(default_factory=list, max_length=MOST_CURVES)],
    metric: str,
    x: str = "steps",
    low: int | None = None,
    high: int | None = None,
) -> Response:
    """One metric (``group.name``) of some trials; ``low`` and ``high``: the first and the last step shown."""
    return JsonResponse(await _curves(visit, id, metric, x, low, high))


async def _curves(
    visit: Visit,
    ids: list[int],
    metric: str,
    x: str,
    low: int | None = None,
    high: int | None = None,
) -> dict[str, Any]:
    """``{metric, x, curves: [{trial, experiment, x: […], y: […]}]}``; values that are no numbers are null."""
    if x not in ("steps", "time"):
        raise BadRequest("x: give steps or time")
    if not ids:
        return {"metric": metric, "x": x, "curves": []}
    points = max(20, min(POINTS, ALL_POINTS // len(ids)))
    parameters: list[tuple[str, Any]] = [
        *(("trialIds", one) for one in ids),
        ("metricIds", metric),
        ("maxDatapoints", min(points, limits.POINTS_OF_CURVE)),
        *([] if low is None else [("startBatches", max(low, 0))]),
        *([] if high is None else [("endBatches", max(high, 0))]),
    ]
    found = await visit.get("/trials/time-series", parameters)
    name = metric.partition(".")[2]
    curves = await aside(points * len(ids) * 20, _drawn, found["trials"], name, x)
    order = {one: place for place, one in enumerate(ids)}
    curves.sort(key=lambda curve: order[curve["trial"]])
    return {"metric": metric, "x": x, "curves": curves}


def _drawn(trials: list[dict[str, Any]], name: str, x: str) -> list[dict[str, Any]]:
    curves = []
    for one in trials:
        trial = one["trial"]
        points = [point for curve in one["metrics"] for point in curve["data"]]
        points = [point for point in points if name in point["values"]]
        began = trial.get("startTime")
        curves.append(
            {
                "trial": trial["id"],
                "experiment": trial["experimentId"],
                "x": [
                    point["batches"] if x == "steps" else _seconds(began, point["time"])
                    for point in points
                ],
                "y": [_value(point["values"][name]) for point in points],
            }
        )
    return curves


def _value(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _seconds(began: str | None, time: str) -> float:
    if began is None:
        return 0.0
    since = datetime.datetime.fromisoformat(time) - datetime.datetime.fromisoformat(began)
    return since.total_seconds()
