"""The data of a plot: an experiment, its trials, and their curves."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from determined_searchers.settings import Form, read_form, read_length, read_unit
from determined_service.plots.hparams import flatten

T = TypeVar("T")


class PlottedOutcome(StrEnum):
    """The outcome of a trial, in the words of the page."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "trained to the end"
    STOPPED = "stopped early"
    FAILED = "failed"
    INVALID = "invalid hyperparameters"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class Point:
    """A validation: ``x`` in steps (or the searcher's time metric); ``y`` None: NaN or infinite."""

    x: float
    y: float | None
    time: datetime.datetime


@dataclass(frozen=True, slots=True)
class Improvement:
    """A validation that was the experiment's best when it was made."""

    trial_id: int
    time: datetime.datetime
    metric: float


@dataclass(slots=True)
class PlottedTrial:
    """One trial. ``metric``: its best finite searcher metric; ``reached``: the longest target that
    it has been measured at (operations form) or its largest time metric (reports form)."""

    id: int
    request_id: str
    outcome: PlottedOutcome
    hparams: dict[str, Any]
    metric: float | None = None
    best_steps: int | None = None
    best_time: datetime.datetime | None = None
    steps: int = 0
    validations: int = 0
    not_finite: int = 0
    target: int | None = None
    targets: int = 0
    reached: float = 0.0
    bracket: int | None = None
    flow_run_id: str | None = None


@dataclass(slots=True)
class Search:
    """An experiment and the data of its figures."""

    id: int
    name: str
    state: str
    config: dict[str, Any]
    start: datetime.datetime
    now: datetime.datetime
    end: datetime.datetime | None = None
    reason: str | None = None
    description: str = ""
    labels: list[str] = field(default_factory=list)
    owner: str = ""
    pool: str = ""
    prefect_url: str | None = None
    flow_run_id: str | None = None
    trials: list[PlottedTrial] = field(default_factory=list)
    curves: dict[int, list[Point]] = field(default_factory=dict)
    curve_points: int = 0  # per trial, at most
    ladders: list[tuple[int, ...]] = field(default_factory=list)  # lengths of rungs, per bracket

    @property
    def section(self) -> dict[str, Any]:
        """The configuration's ``searcher``."""
        return self.config.get("searcher") or {}

    @property
    def metric(self) -> str:
        return str(self.section.get("metric") or "metric")

    @property
    def smaller_is_better(self) -> bool:
        return self.section.get("smaller_is_better") is not False

    @property
    def time_metric(self) -> str | None:
        """The metric by which the searcher measures lengths, in the reports form."""
        found = self.section.get("time_metric")
        return found if self.form is Form.REPORTS and isinstance(found, str) else None

    @property
    def form(self) -> Form:
        return read_form(self.section)

    @property
    def length(self) -> int | None:
        """The length of the best trials; None: their code decides."""
        if self.form is Form.REPORTS:
            found = self.section.get("max_time")
            return found if isinstance(found, int) else None
        return read_length(self.section)

    @property
    def unit(self) -> str:
        """The unit of lengths."""
        return read_unit(self.section) or "steps"

    def better(self, one: float, other: float) -> bool:
        return one < other if self.smaller_is_better else one > other

    def is_thinned(self) -> bool:
        """True if some reported points are not in the curves."""
        return any(
            trial.validations > self.curve_points or trial.id not in self.curves
            for trial in self.trials
            if trial.validations
        )

    def improvements(self) -> list[Improvement]:
        """In order of time, by the points of the curves and the best of every trial."""
        reported = [
            Improvement(trial_id, point.time, point.y)
            for trial_id, points in self.curves.items()
            for point in points
            if point.y is not None
        ]
        reported += [
            Improvement(trial.id, trial.best_time, trial.metric)
            for trial in self.trials
            if trial.best_time is not None and trial.metric is not None
        ]
        reported.sort(key=lambda one: (one.time, one.trial_id))
        found: list[Improvement] = []
        for one in reported:
            if not found or self.better(one.metric, found[-1].metric):
                found.append(one)
        return found

    def ranked(self) -> list[PlottedTrial]:
        """The trials that have a metric, best first; of equals the older one."""
        measured = [trial for trial in self.trials if trial.metric is not None]
        return sorted(measured, key=functools.partial(_rank, sign=self._sign))

    @property
    def _sign(self) -> int:
        return 1 if self.smaller_is_better else -1

    def sample(self, most: int) -> list[PlottedTrial]:
        """At most ``most`` trials, in order: the best half of them and, of the others, every n-th."""
        if len(self.trials) <= most:
            return list(self.trials)
        best = {trial.id for trial in self.ranked()[: most // 2]}
        others = [trial for trial in self.trials if trial.id not in best]
        kept = best | {trial.id for trial in thin(others, most - len(best))}
        return [trial for trial in self.trials if trial.id in kept]


def _rank(trial: PlottedTrial, *, sign: int) -> tuple[float, int]:
    assert trial.metric is not None
    return sign * trial.metric, trial.id


def thin(items: Sequence[T], most: int) -> list[T]:
    """At most ``most`` of ``items``, evenly spread, in order."""
    if len(items) <= most:
        return list(items)
    return [items[index * len(items) // most] for index in range(most)]


def paths(trial: PlottedTrial) -> dict[str, Any]:
    """The trial's hyperparameters by dotted path."""
    return flatten(trial.hparams)
