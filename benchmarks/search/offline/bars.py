"""What the searchers are held to, decided before there were results."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.search.offline.cells import BUDGETS
from benchmarks.search.offline.results import Results
from benchmarks.search.offline.statistics import bootstrap_interval, wilcoxon_p

MODES = ("aggressive", "standard", "conservative")


@dataclass(frozen=True)
class Verdict:
    """One bar at one place. ``figure`` says what was found."""

    bar: str
    task: str
    workers: int
    budget: float
    seeds: int
    figure: str
    holds: bool


def verdicts(results: Results) -> Iterator[Verdict]:
    """Every bar wherever both sides have been run."""
    for task, workers in results.groups():
        for budget in BUDGETS:
            place = _Place(results, task, workers, budget)
            if not task.startswith("T6"):
                yield from place.not_worse("a", "stop_once aggressive", "Ray ASHA")
                yield from place.not_worse("e", "tpe", "Optuna TPE+Hyperband")
            if task.startswith("T1"):
                for rule in ("promotion", "stop_once"):
                    for mode in MODES:
                        yield from place.ratio("b", f"{rule} {mode}", "random", 1.0)
                if budget == 6:
                    for mode in ("aggressive", "standard"):
                        yield from place.ratio("b 0.75", f"promotion {mode}", "random", 0.75)
            if task.startswith("T2"):
                for rule in ("promotion", "stop_once"):
                    yield from place.better("c", f"{rule} conservative", f"{rule} aggressive")


@dataclass(frozen=True)
class _Place:
    results: Results
    task: str
    workers: int
    budget: float

    def pair(self, first: str, second: str) -> tuple[list[float], list[float]] | None:
        found = self.results.paired(self.task, self.workers, (first, second), self.budget)
        return (found[first], found[second]) if len(found) == 2 else None

    def verdict(self, bar: str, seeds: int, figure: str, holds: bool) -> Verdict:
        return Verdict(bar, self.task, self.workers, self.budget, seeds, figure, holds)

    def not_worse(self, bar: str, ours: str, theirs: str) -> Iterator[Verdict]:
        """The 95 % interval of the difference of medians is not wholly above zero."""
        if pair := self.pair(ours, theirs):
            low, high = bootstrap_interval(*pair)
            medians = [statistics.median(side) for side in pair]
            figure = (
                f"{ours} {medians[0]:.4f}, {theirs} {medians[1]:.4f}, "
                f"difference {low:+.4f} to {high:+.4f}, p {wilcoxon_p(*pair):.3f}"
            )
            yield self.verdict(bar, len(pair[0]), figure, low <= 0)

    def ratio(self, bar: str, ours: str, theirs: str, limit: float) -> Iterator[Verdict]:
        """The median is at most ``limit`` of theirs."""
        if pair := self.pair(ours, theirs):
            medians = [statistics.median(side) for side in pair]
            figure = (
                f"{ours} {medians[0]:.4f}, {theirs} {medians[1]:.4f}, p {wilcoxon_p(*pair):.3f}"
            )
            yield self.verdict(bar, len(pair[0]), figure, medians[0] <= limit * medians[1])

    def better(self, bar: str, ours: str, theirs: str) -> Iterator[Verdict]:
        """The median is below theirs."""
        if pair := self.pair(ours, theirs):
            medians = [statistics.median(side) for side in pair]
            figure = (
                f"{ours} {medians[0]:.4f}, {theirs} {medians[1]:.4f}, p {wilcoxon_p(*pair):.3f}"
            )
            yield self.verdict(bar, len(pair[0]), figure, medians[0] < medians[1])
