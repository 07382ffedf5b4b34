"""The points of charts, as JSON for the pages' script."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from determined.common.wire import limits
from determined_service.base.aside import aside
from determined_service.base.bounds import Id
from determined_service.base.errors import NotFound
from determined_service.base.json import JsonResponse
from determined_service.front.rendering import PageRouter
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

MOST_CURVES = 200
"""Trials of one chart."""
POINTS = 300
"""Points of one curve, unless there are many."""
MOST_DEVICES = 64
"""Curves of the profiler's charts."""
ALL_POINTS = 12_000
"""Points of all curves together: of 200 trials, 29 stretches of each with their least and greatest value."""


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
    return JsonResponse(
        await curves_of(visit, ids, name if "." in name else f"validation.{name}", x)
    )


@router.get("/curves/trials", include_in_schema=False)
async def of_trials(
    visit: Visitor,
    id: Annotated[list[Id], Query(default_factory=list, max_length=MOST_CURVES)],
    metric: str,
    x: str = "steps",
    low: int | None = None,
    high: int | None = None,
    quick: bool = False,
) -> Response:
    """One metric (``group.name``) of some trials; ``low`` and ``high``: the first and the last step shown.
    ``quick``: some points of long curves, at once."""
    return JsonResponse(await curves_of(visit, id, metric, x, low, high, quick))


@router.get("/curves/trials/{trial_id}/profiler", include_in_schema=False)
async def of_profiler(visit: Visitor, trial_id: Id, group: str, leaf: str) -> Response:
    """What the profiler measured as ``leaf`` on each machine, and on each of its devices, over time."""
    parameters = {"trialIds": trial_id, "group": group, "maxDatapoints": POINTS}
    found = await visit.get("/trials/time-series", parameters)
    if not found["trials"]:
        raise NotFound(f"trial {trial_id} does not exist")
    curves = await aside(POINTS * MOST_DEVICES * 20, _measured, found["trials"], leaf)
    return JsonResponse({"metric": leaf, "x": "time", "curves": curves})


def _measured(trials: list[dict[str, Any]], leaf: str) -> list[dict[str, Any]]:
    """One curve for each place where ``leaf`` stands, the first :data:`MOST_DEVICES`."""
    found: dict[str, dict[str, Any]] = {}
    for one in trials:
        trial = one["trial"]
        for point in one["metrics"][0]["data"] if one["metrics"] else ():
            seconds = _seconds(trial.get("startTime"), point["time"])
            for name, value in _places(point["values"], leaf):
                new = {"trial": trial["id"], "label": name, "color": len(found), "x": [], "y": []}
                curve = found.get(name) or (
                    found.setdefault(name, new) if len(found) < MOST_DEVICES else new
                )
                curve["x"].append(seconds)
                curve["y"].append(value)
    return list(found.values())


def _places(value: Any, leaf: str, path: str = "") -> Iterator[tuple[str, float]]:
    for name, one in value.items():
        if isinstance(one, dict):
            yield from _places(one, leaf, f"{path} {name}".strip())
        elif name == leaf and isinstance(one, int | float):
            yield path or name, float(one)


async def curves_of(
    visit: Visit,
    ids: list[int],
    metric: str,
    x: str,
    low: int | None = None,
    high: int | None = None,
    quick: bool = False,
) -> dict[str, Any]:
    """``{metric, x, curves: [{trial, experiment, x: […], y: […]}]}``; values that are no numbers are null.

    ``x``: ``steps``, ``time`` (seconds since the trial began), or the name of a metric of the same group that
    counts, ``epoch`` for example; for these two a curve has its ``steps`` too, and ``low`` and ``high`` are
    steps.
    """
    group, _, name = metric.partition(".")
    by_metric = [] if x in ("steps", "time") else [f"{group}.{x}"]
    if not ids:
        return {"metric": metric, "x": x, "curves": []}
    points = max(20, min(POINTS, ALL_POINTS // len(ids)))
    parameters: list[tuple[str, Any]] = [
        *(("trialIds", one) for one in ids),
        *(("metricIds", one) for one in (metric, *by_metric)),
        ("extremesOf", metric),
        ("quick", "true" if quick else "false"),
        ("columns", "true"),
        ("maxDatapoints", min(points, limits.POINTS_OF_CURVE)),
        *([] if low is None else [("startBatches", max(low, 0))]),
        *([] if high is None else [("endBatches", max(high, 0))]),
    ]
    found = await visit.get("/trials/time-series", parameters)
    curves = await aside(points * len(ids) * 20, _drawn, found["trials"], name, x)
    order = {one: place for place, one in enumerate(ids)}
    curves.sort(key=lambda curve: order[curve["trial"]])
    return {"metric": metric, "x": x, "curves": curves}


def _drawn(trials: list[dict[str, Any]], name: str, x: str) -> list[dict[str, Any]]:
    curves = []
    for one in trials:
        trial = one["trial"]
        (found,) = one["metrics"]
        steps, values = found["batches"], found["values"]
        places: list[Any] = steps
        if x == "time":
            places = found["seconds"]
        elif x != "steps":
            places = [_value(value) for value in values.get(x) or [None] * len(steps)]
        ys = values.get(name, [])
        chosen = [place for place in range(len(steps)) if places[place] is not None]
        # Charts need them from left to right.
        chosen.sort(key=places.__getitem__)
        curves.append(
            {
                "trial": trial["id"],
                "experiment": trial["experimentId"],
                "x": [places[one] for one in chosen],
                "y": [_value(ys[one]) for one in chosen],
                **({} if x == "steps" else {"steps": [steps[one] for one in chosen]}),
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
