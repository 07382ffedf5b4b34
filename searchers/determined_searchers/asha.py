"""Asynchronous successive halving (ASHA): the common base of its two decision rules.

Trials are compared at rungs, lengths that grow by ``divisor``, without waiting for a rung to fill.
:class:`~determined_searchers.asha_promotion.PromotingHalving` pauses every trial at each rung and
lets the best go on; :class:`~determined_searchers.asha_stopping.StoppingHalving` lets trials run
and ends those that fall behind. Li et al., "A System for Massively Parallel Hyperparameter
Tuning", 2020.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from determined_searchers.brackets import Bracket, power, rung_lengths
from determined_searchers.errors import SearcherError
from determined_searchers.events import ExitReason
from determined_searchers.method import BracketStanding, SearchContext, SearchMethod
from determined_searchers.metrics import WORST, decode_metric, encode_metric
from determined_searchers.operations import Close, Operation, Stop, ValidateAfter
from determined_searchers.rung import Rung
from determined_searchers.settings import Form, read_divisor, read_whole


class Halving(SearchMethod):
    """One bracket of ASHA. Subclasses decide in :meth:`record`, in O(log n) for n trials.

    Rungs of the same length (short ``max_length``) share one measurement: it counts for all of
    them, one after the other, and no trial is asked for the same length twice.

    Invalid trials are taken out of the rungs and replaced; other early exits count as the worst metric in
    the trial's next rung.
    """

    needs_metric = True

    at_least: ClassVar[int]
    """The least number of trials of a rung that go on."""

    equals_first: ClassVar[bool]
    """True if the later of two equals is ranked before the earlier."""

    def __init__(self, context: SearchContext, bracket: Bracket, divisor: float) -> None:
        self.context = context
        self.bracket = bracket
        self.divisor = divisor
        self.reports = context.form is Form.REPORTS
        self.rungs = [
            Rung(length, divisor, self.at_least, self.equals_first)
            for length in rung_lengths(full_length(context), bracket.rungs, divisor)
        ]
        self.trial_rung: dict[str, int] = {}  # that a trial trains for or was last measured at
        self.outstanding: set[str] = set()  # trials on their way to their rung
        self.exited: set[str] = set()
        self.closed: set[str] = set()  # told to end, or ended by themselves
        self.completed = 0
        self.invalid = 0

    @classmethod
    def from_config(cls, context: SearchContext) -> Halving:
        """One bracket of ``num_rungs``, by the rule of this class."""
        section = context.section
        divisor = read_divisor(section)
        rungs = read_whole(section, "num_rungs", 1)
        trials = read_whole(section, "max_trials", 1)
        cap = read_whole(section, "max_concurrent_trials", 0, default=16)
        # Without a cap: as many as make one trial reach the top.
        cap = cap or int(min(max(power(divisor, rungs - 1), 1), trials))
        return cls(context, Bracket(rungs, trials, cap), divisor)

    @abstractmethod
    def record(self, trial: str, metric: float) -> list[Operation]:
        """Handle that the trial was measured at its next rung."""

    @property
    def invalid_limit(self) -> int | None:
        return 10 * self.bracket.max_trials

    def initial_operations(self) -> list[Operation]:
        count = min(self.bracket.cap, self.bracket.max_trials)
        return [op for _ in range(count) for op in self.start_trial()]

    def validation_completed(self, request_id: str, metric: Any, length: int) -> list[Operation]:
        return self.record(request_id, metric)

    def trial_exited(self, request_id: str, reason: ExitReason) -> list[Operation]:
        self.exited.add(request_id)
        if reason.invalid:
            return self.replace(request_id)
        self.closed.add(request_id)
        # A trial that exits while it is paused has been measured already.
        return self.record(request_id, WORST) if request_id in self.outstanding else []

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        self.completed += 1
        return []

    def progress(self, open_trials: Mapping[str, float]) -> float:
        """The share of trials measured in the bottom rung; the last sixth is for the rungs above it."""
        measured, trials = self.rungs[0].measured, self.bracket.max_trials
        share = measured / (1.2 * trials)
        if measured == trials:
            share = max((self.completed - self.invalid) / trials, share)
        return share

    def start_trial(self) -> list[Operation]:
        create = self.context.new_trial()
        trial = create.request_id
        self.trial_rung[trial] = 0
        self.outstanding.add(trial)
        self.rungs[0].outstanding += 1
        if self.reports:
            return [create]
        return [create, ValidateAfter(trial, self.rungs[0].length)]

    def start_if_any_left(self) -> list[Operation]:
        left = len(self.trial_rung) - self.invalid < self.bracket.max_trials
        return self.start_trial() if left else []

    def replace(self, trial: str) -> list[Operation]:
        """Drop an invalid trial's metrics and create another trial in its place."""
        self.invalid += 1
        measured = self.trial_rung[trial] + (trial not in self.outstanding)
        for rung in self.rungs[:measured]:
            rung.withdraw(trial)
        self.arrive(trial)
        return [*self.end_trial(trial), *self.start_trial()]

    def end_trial(self, trial: str) -> list[Operation]:
        self.closed.add(trial)
        return [Stop(trial) if self.reports else Close(trial)]

    def arrive(self, trial: str) -> Rung:
        """Note that the trial is no longer on its way to its next rung."""
        rung = self.rungs[self.trial_rung[trial]]
        if trial in self.outstanding:
            self.outstanding.remove(trial)
            rung.outstanding -= 1
        return rung

    def advance(self, trial: str) -> Rung:
        """Note that the trial is on its way to the next rung."""
        place = self.trial_rung[trial] = self.trial_rung[trial] + 1
        self.outstanding.add(trial)
        rung = self.rungs[place]
        rung.outstanding += 1
        return rung

    def standings(self) -> list[BracketStanding]:
        return [
            BracketStanding(
                lengths=tuple(rung.length for rung in self.rungs),
                measured=tuple(
                    tuple(trial for _, _, trial in rung.ranking()) for rung in self.rungs
                ),
                max_trials=self.bracket.max_trials,
                max_concurrent=self.bracket.cap,
            )
        ]

    def state(self) -> dict[str, Any]:
        return {
            "rungs": [
                {
                    "units_needed": rung.length,
                    "outstanding": rung.outstanding,
                    "metrics": [
                        [trial, encode_metric(metric), self.trial_rung[trial] > place]
                        for metric, _, trial in rung.ranking()
                    ],
                }
                for place, rung in enumerate(self.rungs)
            ],
            "trials": [
                [
                    trial,
                    rung,
                    trial in self.outstanding,
                    trial in self.exited,
                    trial in self.closed,
                ]
                for trial, rung in self.trial_rung.items()
            ],
            "completed": self.completed,
            "invalid": self.invalid,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        for trial, rung, outstanding, exited, closed in state["trials"]:
            self.trial_rung[trial] = rung
            for members, member in (
                (self.outstanding, outstanding),
                (self.exited, exited),
                (self.closed, closed),
            ):
                if member:
                    members.add(trial)
        for place, saved in enumerate(state["rungs"]):
            self.rungs[place].outstanding = saved["outstanding"]
            self.rungs[place].load(
                (trial, float(decode_metric(metric))) for trial, metric, _ in saved["metrics"]
            )
        self.completed, self.invalid = state["completed"], state["invalid"]


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
