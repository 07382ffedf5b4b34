"""Trials beside each other: which ones, what is known of them, and what differs between them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from determined_service.base.errors import BadRequest
from determined_service.front.curves import MOST_CURVES
from determined_service.front.visits import Visit

MOST_EXPERIMENTS = 50
BEST_OF_ONE = 30
"""Trials of an experiment that is shown alone, unless the address has another number; of several, the best
one each."""
MOST_ROWS = 200
"""Hyperparameters, and metrics, that the table shows."""
_GROUPS = {"avg_metrics": "training", "validation_metrics": "validation"}


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
                if self.experiments and self.best != usual(self.experiments)
                else []
            ),
        ]


def usual(experiments: Collection[int]) -> int:
    """How many trials of each experiment there are, if nobody chose a number."""
    return BEST_OF_ONE if len(set(experiments)) == 1 else 1


def choice_of(
    trials: Sequence[int], experiments: Sequence[int], without: Sequence[int], best: int
) -> Choice:
    gone = set(without)
    named = tuple(dict.fromkeys(one for one in trials if one not in gone))
    of = tuple(dict.fromkeys(experiments))
    # Whoever takes a named trial away need not keep saying so.
    left = frozenset(gone - set(trials)) if not of else frozenset(gone)
    return Choice(named, of, left, best or usual(of))


async def chosen(visit: Visit, choice: Choice) -> tuple[list[int], list[str]]:
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


async def read_trials(
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


async def read_experiments(
    visit: Visit, trials: Iterable[dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """The experiments of the trials, without their configurations."""
    ids = list(dict.fromkeys(one["experimentId"] for one in trials))
    if not ids:
        return {}
    named = [("experimentIdFilter.incl", one) for one in ids]
    found = await visit.get("/experiments", [*named, ("light", "true"), ("limit", len(ids))])
    by_id = {one["id"]: one for one in found["experiments"]}
    return {one: by_id[one] for one in ids if one in by_id}


def metrics_of(trials: Iterable[dict[str, Any]]) -> list[str]:
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


def first_metric(experiments: dict[int, dict[str, Any]], metrics: Sequence[str]) -> str:
    wanted = [f"validation.{one['searcherMetric']}" for one in experiments.values()]
    return next((one for one in wanted if one in metrics), metrics[0] if metrics else "")


def flat(hparams: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Nested hyperparameters by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in hparams.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """One name, and its value in each trial; ``best``: the places of the best of them."""

    name: str
    values: list[Any]
    best: frozenset[int] = frozenset()


def differing(
    trials: Sequence[dict[str, Any]], given: Iterable[dict[str, Any]], same: bool
) -> tuple[list[Row], int]:
    """A row for each hyperparameter that differs (or each, with ``same``), and how many are not shown."""
    of_trials = list(given)
    names = list(dict.fromkeys(name for one in of_trials for name in one))
    rows = [Row(name, [one.get(name) for one in of_trials]) for name in names]
    if not same and len(trials) > 1:
        rows = [row for row in rows if any(value != row.values[0] for value in row.values)]
    return rows[:MOST_ROWS], len(names) - len(rows[:MOST_ROWS])


def metric_rows(
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
