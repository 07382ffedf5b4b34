"""Trials side by side: any trials of any experiments, chosen in the address."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request
from starlette.responses import Response

from determined_service.base import topics
from determined_service.base.bounds import Id
from determined_service.base.errors import BadRequest
from determined_service.base.pages import FRONT_HOME
from determined_service.front.curves import MOST_CURVES
from determined_service.front.rendering import PageRouter, page, state
from determined_service.front.stream import MOST_TOPICS
from determined_service.front.visits import Visit, Visitor

router = PageRouter()

MOST_EXPERIMENTS = 50
BEST_OF_ONE = 30
"""Trials of an experiment that is shown alone, unless the address has another number; of several, the best
one each."""
MOST_ROWS = 200
"""Hyperparameters, and metrics, that the table shows."""
SUGGESTED = 8
_GROUPS = {"avg_metrics": "training", "validation_metrics": "validation"}
_ADDED = re.compile(r"e?[1-9]\d{0,8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Choice:
    """The trials of the page: those named, and the ``best`` of each experiment named; none of ``without``."""

    trials: tuple[int, ...]
    experiments: tuple[int, ...]
    without: frozenset[int]
    best: int

    def fields(self) -> list[tuple[str, int]]:
        """What the address and each form of the page hold of it."""
        return [
            *(("trial", one) for one in self.trials),
            *(("experiment", one) for one in self.experiments),
            *(("without", one) for one in sorted(self.without)),
            *(
                [("best", self.best)]
                if self.experiments and self.best != _usual(self.experiments)
                else []
            ),
        ]


def _usual(experiments: Collection[int]) -> int:
    """How many trials of each experiment there are, if nobody chose a number."""
    return BEST_OF_ONE if len(set(experiments)) == 1 else 1


def _whole(text: str, most: int) -> int | None:
    """A number from 1 to ``most``; None: the field was left empty, or holds no such number."""
    is_number = text.isascii() and text.isdigit() and len(text) < 20
    return max(1, min(int(text), most)) if is_number else None


@router.get("/compare", include_in_schema=False)
async def compare(
    request: Request,
    visit: Visitor,
    trial: Annotated[list[Id], Query(default_factory=list, max_length=1000)],
    experiment: Annotated[list[Id], Query(default_factory=list, max_length=1000)],
    without: Annotated[list[Id], Query(default_factory=list, max_length=1000)],
    best: str = "",
    metric: str = "",
    x: str = "steps",
    scale: str = "linear",
    smooth: Annotated[float, Query(ge=0, le=0.95)] = 0,
    step: str = "",
    same: bool = False,
    add: str = "",
) -> Response:
    """Curves of the chosen trials, and a column for each: hyperparameters, metrics, times."""
    at, count = _whole(step, 2**62), _whole(best, MOST_CURVES) or 0
    suggested, problem = [], ""
    words = re.split(r"[\s,]+", add.strip())
    numbers = all(_ADDED.fullmatch(one) for one in words)
    if numbers:
        if any(one[0] == "e" for one in words) and experiment:
            # The trials that are there stay.
            count = count or _usual(experiment)
        trial = [*trial, *(int(one) for one in words if one[0] != "e")]
        experiment = [*experiment, *(int(one[1:]) for one in words if one[0] == "e")]
        without = [one for one in without if str(one) not in words]
    elif add.strip():
        try:
            suggested = await _suggested(visit, add)
        except BadRequest as refusal:
            problem = refusal.message
    choice = _choice(trial, experiment, without, count)
    ids, remarks = await _chosen(visit, choice)
    found = await _trials(visit, ids, metric, at) if ids else []
    lacking = [one for one in ids if one not in {one["id"] for one in found}]
    if lacking:
        some = ", ".join(map(str, lacking[:10])) + (" …" if len(lacking) > 10 else "")
        remarks.append(f"There is no trial {some}, or you may not see it.")
    experiments = await _experiments(visit, found)
    metrics = _metrics(found)
    metric = metric or _first_metric(experiments, metrics)
    if metric and at is not None and found and "at" not in found[0]:
        found = await _trials(visit, ids, metric, at)

    def address(**changed: Any) -> str:
        given = {"metric": metric, "x": x, "scale": scale, "smooth": smooth, "step": at}
        given |= {"same": "true" if same else "", **changed}
        left = {name: value for name, value in given.items() if value not in ("", None, 0)}
        return f"{FRONT_HOME}/compare?{urlencode([*choice.fields(), *left.items()])}"

    active = [one for one in experiments.values() if state(one["state"]) not in _ENDED]
    return page(
        "compare",
        request,
        visit,
        live=" ".join(topics.experiment(one["id"]) for one in active[:MOST_TOPICS]),
        command=f"det trial describe {found[0]['id']}"
        if found
        else "det experiment list-trials ID",
        trials=found,
        experiments=experiments,
        differing=list(experiments) if len(experiments) == 2 else [],
        hparams=_rows(found, (_flat(one["hparams"]) for one in found), same),
        # That of the curves first.
        metrics=_metric_rows(found, sorted(metrics, key=lambda name: name != metric)),
        names=sorted({metric, *metrics} - {""}),
        metric=metric,
        x=x,
        scale=scale,
        smooth=smooth,
        step=at,
        same=same,
        curves=f"{FRONT_HOME}/curves/trials?{urlencode([('id', one['id']) for one in found])}",
        choice=choice,
        remarks=remarks,
        suggested=suggested,
        problem=problem,
        add="" if numbers else add.strip(),
        address=address,
        most=MOST_CURVES,
    )


_ENDED = frozenset({"COMPLETED", "CANCELED", "ERROR"})


def _choice(
    trials: Sequence[int], experiments: Sequence[int], without: Sequence[int], best: int
) -> Choice:
    gone = set(without)
    named = tuple(dict.fromkeys(one for one in trials if one not in gone))
    of = tuple(dict.fromkeys(experiments))
    # Whoever takes a named trial away need not keep saying so.
    left = frozenset(gone - set(trials)) if not of else frozenset(gone)
    return Choice(named, of, left, best or _usual(of))


async def _chosen(visit: Visit, choice: Choice) -> tuple[list[int], list[str]]:
    """The ids of the trials in order, and sentences about those that are left out. Raises ApiError."""
    if len(choice.experiments) > MOST_EXPERIMENTS:
        raise BadRequest(
            f"{len(choice.experiments)} experiments are to be compared, at most {MOST_EXPERIMENTS} are "
            "allowed: take some from the address"
        )
    best = await asyncio.gather(*(_best(visit, one, choice.best) for one in choice.experiments))
    remarks = [
        f"Of experiment {one}, the best {len(ids)} of {total} trials are shown."
        for one, (ids, total) in zip(choice.experiments, best, strict=True)
        if total > len(ids)
    ]
    of_experiments = [one for ids, _ in best for one in ids if one not in choice.without]
    all_ids = list(dict.fromkeys([*choice.trials, *of_experiments]))
    if len(all_ids) > MOST_CURVES:
        remarks.append(
            f"{len(all_ids)} trials are chosen, and the first {MOST_CURVES} are shown: take some away to see "
            "the others."
        )
    return all_ids[:MOST_CURVES], remarks


async def _best(visit: Visit, experiment_id: int, count: int) -> tuple[list[int], int]:
    """The ids of the experiment's best trials, and how many it has. Raises ApiError."""
    experiment = (await visit.get(f"/experiments/{experiment_id}"))["experiment"]
    smaller = experiment["config"].get("searcher", {}).get("smaller_is_better", True)
    found = await visit.get(
        f"/experiments/{experiment_id}/trials",
        {
            "sortBy": "SORT_BY_BEST_VALIDATION_METRIC",
            "orderBy": "ORDER_BY_ASC" if smaller else "ORDER_BY_DESC",
            "limit": count,
        },
    )
    return [one["id"] for one in found["trials"]], found["pagination"]["total"]


async def _trials(
    visit: Visit, ids: Sequence[int], metric: str, step: int | None
) -> list[dict[str, Any]]:
    """The trials in this order; with ``at``, the ``metric``'s last value up to ``step``."""
    at = bool(metric and step is not None)
    wanted = metric if at else "validation.-"
    parameters: list[tuple[str, Any]] = [
        *(("trialIds", one) for one in ids),
        ("metricIds", wanted),
        ("extremesOf", wanted),
        ("maxDatapoints", 4),
        # Without a step, the trials alone are wanted.
        ("endBatches", max(step or 0, 1) if at else 1),
    ]
    found = {}
    for one in (await visit.get("/trials/time-series", parameters))["trials"]:
        trial = one["trial"]
        if at:
            name = metric.partition(".")[2]
            points = [point for curve in one["metrics"] for point in curve["data"]]
            values = [point["values"][name] for point in points if name in point["values"]]
            trial["at"] = values[-1] if values else None
        found[trial["id"]] = trial
    return [found[one] for one in ids if one in found]


async def _experiments(visit: Visit, trials: Iterable[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The experiments of the trials, without their configurations."""
    ids = list(dict.fromkeys(one["experimentId"] for one in trials))
    if not ids:
        return {}
    named = [("experimentIdFilter.incl", one) for one in ids]
    found = await visit.get("/experiments", [*named, ("light", "true"), ("limit", len(ids))])
    by_id = {one["id"]: one for one in found["experiments"]}
    return {one: by_id[one] for one in ids if one in by_id}


async def _suggested(visit: Visit, query: str) -> list[dict[str, Any]]:
    """The newest experiments that the query finds. Raises BadRequest."""
    parameters = {
        "query": query,
        "light": "true",
        "limit": SUGGESTED,
        "sortBy": "SORT_BY_ID",
        "orderBy": "ORDER_BY_DESC",
    }
    return list((await visit.get("/experiments", parameters))["experiments"])


def _metrics(trials: Iterable[dict[str, Any]]) -> list[str]:
    """The names (``group.name``) of all metrics that have numbers."""
    found = {
        f"{_GROUPS.get(group, group)}.{name}"
        for trial in trials
        for group, summaries in trial["summaryMetrics"].items()
        for name, summary in summaries.items()
        if "min" in summary
    }
    # Validations first: they are what trials are compared by.
    return sorted(found, key=lambda name: (not name.startswith("validation."), name))


def _first_metric(experiments: dict[int, dict[str, Any]], metrics: Sequence[str]) -> str:
    wanted = [f"validation.{one['searcherMetric']}" for one in experiments.values()]
    return next((one for one in wanted if one in metrics), metrics[0] if metrics else "")


def _flat(hparams: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Nested hyperparameters by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in hparams.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """One name, and its value in each trial; ``best``: the places of the best of them."""

    name: str
    values: list[Any]
    best: frozenset[int] = frozenset()


def _rows(
    trials: Sequence[dict[str, Any]], given: Iterable[dict[str, Any]], same: bool
) -> tuple[list[Row], int]:
    """A row for each hyperparameter that differs (or each, with ``same``), and how many are not shown."""
    of_trials = list(given)
    names = list(dict.fromkeys(name for one in of_trials for name in one))
    rows = [Row(name, [one.get(name) for one in of_trials]) for name in names]
    if not same and len(trials) > 1:
        rows = [row for row in rows if any(value != row.values[0] for value in row.values)]
    return rows[:MOST_ROWS], len(names) - len(rows[:MOST_ROWS])


def _metric_rows(
    trials: Sequence[dict[str, Any]], metrics: Sequence[str]
) -> list[tuple[str, list[Row]]]:
    """For each metric the least, the greatest and the last value in each trial."""
    back = {shown: group for group, shown in _GROUPS.items()}
    found = []
    for metric in metrics[:MOST_ROWS]:
        group, _, name = metric.partition(".")
        summaries = [
            one["summaryMetrics"].get(back.get(group, group), {}).get(name, {}) for one in trials
        ]
        rows = [
            Row(title, [one.get(key) for one in summaries], _extreme(summaries, key))
            for title, key in (("least", "min"), ("greatest", "max"), ("last", "last"))
        ]
        found.append((metric, rows))
    return found


def _extreme(summaries: Sequence[dict[str, Any]], key: str) -> frozenset[int]:
    """The places of the least of all least values, or of the greatest of the greatest; none if all are
    equal."""
    numbers = {
        place: one[key]
        for place, one in enumerate(summaries)
        if isinstance(one.get(key), int | float)
    }
    if key == "last" or len(numbers) < 2:
        return frozenset()
    wanted = min(numbers.values()) if key == "min" else max(numbers.values())
    found = frozenset(place for place, value in numbers.items() if value == wanted)
    return found if len(found) < len(numbers) else frozenset()
