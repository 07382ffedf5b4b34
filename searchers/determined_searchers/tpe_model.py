"""The model of ``tpe``: it knows the trials and suggests the next point."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from determined_searchers.asha import full_length
from determined_searchers.brackets import levels, rung_lengths
from determined_searchers.coordinates import Coordinates, Point
from determined_searchers.events import ExitReason
from determined_searchers.method import SearchContext
from determined_searchers.metrics import decode_metric, encode_metric
from determined_searchers.settings import read_divisor

BEST = 25
"""Optuna's sampler takes the best tenth as good trials, at most this many."""

SHOWN = 10 * BEST
"""The most trials that the sampler sees. More trials cost more time but hardly improve the model.
"""


@dataclass(slots=True)
class Observed:
    """A trial as the model sees it.

    ``metrics``: by level (index into the model's lengths), smaller is better.
    """

    point: Point
    metrics: dict[int, float] = field(default_factory=dict)
    failed: bool = False
    over: bool = False


class TreeParzenModel:
    """Splits the trials into the best few and the rest, estimates the density of both, and suggests
    the point where their ratio is largest (Bergstra et al., "Algorithms for Hyper-Parameter
    Optimization", 2011), using Optuna's sampler.

    Trials are compared by their metric at one length, as in BOHB (Falkner et al., 2018). It is the longest
    length at which twice ``n_startup`` trials were measured (of fewer, the best tenth is a single trial).
    Until there is such a length, it is the shortest at which ``n_startup`` trials were measured; until
    then, points are random. Lengths of all brackets count together. Trials that errored rank behind all
    others. Trials without a measurement count as bad, which keeps parallel suggestions apart. Invalid
    trials are dropped.

    A new sampler is made for each suggestion and seeded from the search's stream, so that a suggestion
    depends only on the saved state.
    """

    def __init__(self, context: SearchContext, n_startup: int, multivariate: bool) -> None:
        full, divisor = full_length(context), read_divisor(context.section)
        rungs = max(levels(full, divisor), *(context.section.get("bracket_rungs") or [1]))
        self.lengths = sorted(set(rung_lengths(full, rungs, divisor)))
        self.n_startup = n_startup
        self.multivariate = multivariate
        self.coordinates = Coordinates(context.space)
        self.trials: dict[str, Observed] = {}
        self._context = context
        self._counts = [0] * len(self.lengths)  # trials measured, by level

    def suggest(self) -> dict[str, Any]:
        """Hyperparameters to try next."""
        stream = self._context.stream
        level = self._level()
        if level is None or not self.coordinates.axes:
            return self._context.space.sample(stream)
        from determined_searchers.tpe_sampler import sample  # imports Optuna: half a second

        point = sample(self.coordinates.axes, self._shown(level), stream.word(), self.multivariate)
        return self.coordinates.hparams(point)

    def created(self, request_id: str, hparams: Mapping[str, Any]) -> None:
        self.trials[request_id] = Observed(self.coordinates.of(hparams))

    def measured(self, request_id: str, time: float, metric: float) -> None:
        """Note ``metric`` for the longest length within ``time``, if that length has none yet."""
        level = bisect_right(self.lengths, time) - 1
        trial = self.trials[request_id]
        if level >= 0 and level not in trial.metrics:
            trial.metrics[level] = metric
            self._counts[level] += 1

    def exited(self, request_id: str, reason: ExitReason) -> None:
        if reason.invalid:
            for level in self.trials.pop(request_id).metrics:
                self._counts[level] -= 1
        else:
            self.trials[request_id].failed = reason is ExitReason.ERRORED

    def closed(self, request_id: str) -> None:
        if request_id in self.trials:
            self.trials[request_id].over = True

    def _level(self) -> int | None:
        """The index of the length that trials are compared at."""
        measured = list(enumerate(self._counts))
        well_known = [level for level, count in measured if count >= 2 * self.n_startup]
        known = [level for level, count in measured if count >= self.n_startup]
        return max(well_known) if well_known else min(known, default=None)

    def _shown(self, level: int) -> list[tuple[Point, int | None]]:
        """The points to learn from, oldest first, each with its rank; None: not yet measured."""
        ranked: list[Observed] = []
        failed: list[Observed] = []
        waiting: list[Observed] = []
        for trial in self.trials.values():
            if trial.failed:
                failed.append(trial)
            elif level in trial.metrics:
                ranked.append(trial)
            elif not (trial.metrics or trial.over):
                waiting.append(trial)
        ranked.sort(key=lambda trial: trial.metrics[level])
        ranks: dict[int, int | None] = {
            id(trial): rank for rank, trial in enumerate(_thin(ranked + failed))
        }
        ranks |= {id(trial): None for trial in waiting}
        return [
            (trial.point, ranks[id(trial)]) for trial in self.trials.values() if id(trial) in ranks
        ]

    def state(self) -> list[Any]:
        """The trials, as JSON."""
        return [
            [
                request_id,
                list(trial.point),
                [[level, encode_metric(metric)] for level, metric in trial.metrics.items()],
                trial.failed,
                trial.over,
            ]
            for request_id, trial in self.trials.items()
        ]

    def load(self, state: list[Any]) -> None:
        """Return to the position at which :meth:`state` was taken."""
        self.trials = {
            request_id: Observed(
                self.coordinates.load(point),
                {level: float(decode_metric(metric)) for level, metric in metrics},
                failed,
                over,
            )
            for request_id, point, metrics, failed, over in state
        }
        self._counts = [0] * len(self.lengths)
        for trial in self.trials.values():
            for level in trial.metrics:
                self._counts[level] += 1


def _thin(ranked: list[Observed]) -> list[Observed]:
    """The best trials and, at even distances, some of the others."""
    rest = len(ranked) - BEST
    room = SHOWN - BEST
    if rest <= room:
        return ranked
    return ranked[:BEST] + [ranked[BEST + place * rest // room] for place in range(room)]
