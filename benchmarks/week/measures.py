"""What a week under one scheduler was like: :class:`Measures`."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.week.trace import AGENTS, SLOTS, WEEK_S, Experiment
from determined_service.scheduling.scheduler import Decision
from determined_service.scheduling.shares import Claimant, shares
from determined_service.scheduling.snapshot import Snapshot

CAPACITY = AGENTS * SLOTS
BUCKET_S = 3600.0


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness (Jain, Chiu, Hawe, 1984): 1 when all are equal, 1/n when one has all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


@dataclass(slots=True)
class Measures:
    """Times in seconds. ``waits``: by priority, from a trial's request to its first placement;
    ``stretches``: of each experiment, its time from submission to end, of what it takes alone;
    ``by_hour``: slot-seconds of useful work in each hour."""

    waits: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    preemptions: int = 0
    useful: float = 0.0
    held: float = 0.0
    fair: float = 0.0
    contended: float = 0.0
    by_hour: Counter[int] = field(default_factory=Counter)
    queued_by_hour: Counter[int] = field(default_factory=Counter)
    ends: dict[Experiment, float] = field(default_factory=dict)
    cpu: float = 0.0
    decisions: int = 0
    over: float = 0.0

    def timed(self, decide: Callable[[Snapshot], Decision], snapshot: Snapshot) -> Decision:
        begun = time.process_time()
        found = decide(snapshot)
        self.cpu += time.process_time() - begun
        self.decisions += 1
        return found

    def placed(self, experiment: Experiment, waited: float, first: bool) -> None:
        if first:
            self.waits[experiment.priority].append(waited)

    def preempted(self, experiment: Experiment) -> None:
        self.preemptions += 1

    def ended(self, experiment: Experiment, now: float) -> None:
        """One more of its trials has; the last one counts."""
        self.ends[experiment] = now
        self.over = now

    def passed(
        self,
        begun: float,
        end: float,
        useful: int,
        running: Sequence[Experiment],
        waiting: Sequence[Experiment],
    ) -> None:
        """From ``begun`` to ``end`` this ran, one entry for each trial, and this waited."""
        taken = end - begun
        if taken <= 0:
            return
        self._in_hours(begun, end, useful, len(waiting))
        inside = max(0.0, min(end, WEEK_S) - begun)
        self.useful += useful * inside
        held = Counter[Experiment]()
        for one in running:
            held[one] += one.slots
        self.held += held.total() * inside
        demand = held.copy()
        for one in waiting:
            demand[one] += one.slots
        if len(demand) > 1 and demand.total() > CAPACITY:
            everybody = sorted(demand, key=lambda one: one.submitted)
            claims = [Claimant(demand[one], one.slots, one.weight) for one in everybody]
            due = shares(CAPACITY, claims)
            got = [held[one] / share for one, share in zip(everybody, due, strict=True) if share]
            self.fair += jain(got) * taken
            self.contended += taken

    def _in_hours(self, begun: float, end: float, useful: int, waiting: int) -> None:
        while begun < end:
            hour = int(begun // BUCKET_S)
            until = min(end, (hour + 1) * BUCKET_S)
            self.by_hour[hour] += useful * (until - begun)
            self.queued_by_hour[hour] += waiting * (until - begun)
            begun = until

    @property
    def utilisation(self) -> float:
        """Useful work in the week, of what all slots could do."""
        return self.useful / (CAPACITY * WEEK_S)

    @property
    def lost(self) -> float:
        """Slot time in the week spent on saving and restoring, of all that was held."""
        return 1 - self.useful / self.held

    @property
    def fairness(self) -> float:
        """Jain's index of slots held, of the fair share, over the experiments present; the mean over the time
        in which more was wanted than there is."""
        return self.fair / self.contended if self.contended else 1.0

    def stretch(self) -> float:
        """The median over the experiments."""
        return statistics.median(
            (end - one.submitted) / _alone(one) for one, end in self.ends.items()
        )


def _alone(experiment: Experiment) -> float:
    """How long the experiment takes at least with the cluster to itself."""
    width = min(experiment.at_once, CAPACITY // experiment.slots)
    longest = max(trial.duration for trial in experiment.trials)
    return max(longest, sum(trial.duration for trial in experiment.trials) / width)


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted or unsorted values; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
