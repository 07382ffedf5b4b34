"""Asynchronous successive halving (ASHA): what its two decision rules share.

Trials are compared at rungs, lengths that grow by ``divisor``, without waiting for a rung to fill.
:class:`~determined_searchers.asha_promotion.PromotingHalving` pauses every trial at each rung and
lets the best go on; :class:`~determined_searchers.asha_stopping.StoppingHalving` lets trials run
and ends those that fall behind. Li et al., "A System for Massively Parallel Hyperparameter
Tuning", 2020.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from determined_searchers.brackets import Bracket, power, rung_lengths
from determined_searchers.errors import SearcherError
from determined_searchers.events import ExitReason
from determined_searchers.method import SearchContext, SearchMethod
from determined_searchers.metrics import WORST, decode_metric, encode_metric
from determined_searchers.operations import Close, Operation, Stop, ValidateAfter
from determined_searchers.settings import Form, read_divisor, read_whole


@dataclass(slots=True)
class Entry:
    """A trial's metric (smaller is better) in a rung."""

    request_id: str
    metric: float
    promoted: bool = False


@dataclass(slots=True)
class Rung:
    """``entries`` from best to worst (the top rung of the promotion rule: as they came)."""

    length: int
    outstanding: int = 0  # trials on their way to this rung
    entries: list[Entry] = field(default_factory=list)
    swept: bool = False  # nothing to close here since the last entry came (not saved: a hint)


@dataclass(slots=True)
class Contender:
    """A trial: the rung it trains for or was last measured at."""

    rung: int = 0
    outstanding: bool = True  # on its way to that rung
    exited: bool = False
    closed: bool = False  # told to end, or ended by itself


class Halving(SearchMethod):
    """One bracket of ASHA. Subclasses decide in :meth:`record`.

    Rungs of the same length (short ``max_length``) share one measurement: it counts for all of
    them, one after the other, and no trial is asked for the same length twice.

    Invalid trials are taken out of the rungs and replaced; other early exits count as the worst
    metric there is in the rung the trial was on its way to.
    """

    def __init__(self, context: SearchContext, bracket: Bracket, divisor: float) -> None:
        self.context = context
        self.bracket = bracket
        self.divisor = divisor
        self.rungs = [
            Rung(length) for length in rung_lengths(full_length(context), bracket.rungs, divisor)
        ]
        self.trials: dict[str, Contender] = {}
        self.completed = 0
        self.invalid = 0

    @classmethod
    def from_config(cls, context: SearchContext) -> SearchMethod:
        """``async_halving``: one bracket of ``num_rungs``, by the rule the section asks for."""
        section = context.section
        divisor = read_divisor(section)
        rungs = read_whole(section, "num_rungs", 1)
        trials = read_whole(section, "max_trials", 1)
        cap = read_whole(section, "max_concurrent_trials", 0, default=16)
        # Without a cap: as many as make one trial reach the top.
        cap = cap or int(min(max(power(divisor, rungs - 1), 1), trials))
        return halving(context, Bracket(rungs, trials, cap), divisor)

    @abstractmethod
    def record(self, request_id: str, metric: float) -> list[Operation]:
        """The trial was measured at the rung it was on its way to."""

    @property
    def invalid_limit(self) -> int | None:
        return 10 * self.bracket.max_trials

    def initial_operations(self) -> list[Operation]:
        count = min(self.bracket.cap, self.bracket.max_trials)
        return [op for _ in range(count) for op in self.start_trial()]

    def trial_exited(self, request_id: str, reason: ExitReason) -> list[Operation]:
        trial = self.trials[request_id]
        trial.exited = True
        if reason.invalid:
            return self.replace(request_id, trial)
        trial.closed = True
        # A trial that exits while it is paused has been measured already.
        return self.record(request_id, WORST) if trial.outstanding else []

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        self.completed += 1
        return []

    def progress(self, open_trials: Mapping[str, float]) -> float:
        """By trials measured in the bottom rung; the last sixth is for what goes on above it."""
        measured, trials = len(self.rungs[0].entries), self.bracket.max_trials
        share = measured / (1.2 * trials)
        if measured == trials:
            share = max((self.completed - self.invalid) / trials, share)
        return share

    def start_trial(self) -> list[Operation]:
        create = self.context.new_trial()
        self.trials[create.request_id] = Contender()
        self.rungs[0].outstanding += 1
        if self.context.form is Form.REPORTS:
            return [create]
        return [create, ValidateAfter(create.request_id, self.rungs[0].length)]

    def start_if_any_left(self) -> list[Operation]:
        left = len(self.trials) - self.invalid < self.bracket.max_trials
        return self.start_trial() if left else []

    def replace(self, request_id: str, trial: Contender) -> list[Operation]:
        """Forgets an invalid trial's metrics and puts another in its place."""
        self.invalid += 1
        self.arrive(trial)
        for rung in self.rungs[: trial.rung + 1]:
            rung.entries = [entry for entry in rung.entries if entry.request_id != request_id]
        return [*self.end_trial(request_id), *self.start_trial()]

    def end_trial(self, request_id: str) -> list[Operation]:
        self.trials[request_id].closed = True
        end = Stop if self.context.form is Form.REPORTS else Close
        return [end(request_id)]

    def arrive(self, trial: Contender) -> None:
        """The trial is no longer on its way to its rung."""
        if trial.outstanding:
            trial.outstanding = False
            self.rungs[trial.rung].outstanding -= 1

    def advance(self, trial: Contender) -> Rung:
        """The trial is on its way to the next rung."""
        trial.rung += 1
        trial.outstanding = True
        self.rungs[trial.rung].outstanding += 1
        return self.rungs[trial.rung]

    def state(self) -> dict[str, Any]:
        return {
            "rungs": [
                {
                    "units_needed": rung.length,
                    "outstanding": rung.outstanding,
                    "metrics": [
                        [entry.request_id, encode_metric(entry.metric), entry.promoted]
                        for entry in rung.entries
                    ],
                }
                for rung in self.rungs
            ],
            "trials": [
                [request_id, trial.rung, trial.outstanding, trial.exited, trial.closed]
                for request_id, trial in self.trials.items()
            ],
            "completed": self.completed,
            "invalid": self.invalid,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.rungs = [
            Rung(
                saved["units_needed"],
                saved["outstanding"],
                [
                    Entry(request_id, float(decode_metric(metric)), promoted)
                    for request_id, metric, promoted in saved["metrics"]
                ],
            )
            for saved in state["rungs"]
        ]
        self.trials = {request_id: Contender(*rest) for request_id, *rest in state["trials"]}
        self.completed, self.invalid = state["completed"], state["invalid"]


def halving(context: SearchContext, bracket: Bracket, divisor: float) -> Halving:
    """The bracket under the rule of the configuration: ``max_length`` without ``stop_once``
    promotes, everything else stops."""
    from determined_searchers.asha_promotion import PromotingHalving
    from determined_searchers.asha_stopping import StoppingHalving

    promotes = context.form is Form.OPERATIONS and not context.section.get("stop_once")
    return (PromotingHalving if promotes else StoppingHalving)(context, bracket, divisor)


def full_length(context: SearchContext) -> int:
    """``max_length``, or ``max_time`` in the reports form."""
    if context.max_length is not None:
        return context.max_length
    section = context.section
    if section.get("max_time") is None or section.get("time_metric") is None:
        raise SearcherError(
            f"searcher: the {section.get('name')} searcher requires `max_time` and `time_metric` "
            f"to be set (or `max_length`)"
        )
    return read_whole(section, "max_time", 1)
