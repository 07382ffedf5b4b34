"""A week of a cluster that does not exist, drawn from a seed: :func:`draw`.

The shapes are those that published traces of shared GPU clusters have in common (Philly, 2017; Helios, 2020;
Alibaba PAI, 2020): few long trainings hold most of the slots, most trainings are short and narrow, users
submit in working hours and in bursts, gangs of several slots are a tenth of the trainings and half the work.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value", int, float)

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WEEK_S = 7 * DAY_S

AGENTS, SLOTS = 8, 8
LOAD = 0.95
"""Work that is submitted in the week, of what all slots can do in it."""
USERS = 20
MEDIAN_S, SIGMA = 15 * 60.0, 1.4
"""Of a trial's duration, log-normal."""
LONGEST_S = 2 * DAY_S
WIDTHS = {1: 70, 2: 14, 4: 10, 8: 6}
TRIALS = {1: 55, 4: 20, 16: 18, 64: 7}
"""Trials of an experiment, and how often of 100."""
PRIORITIES = {42: 80, 10: 10, 70: 10}
WEIGHTS = {1.0: 85, 2.0: 10, 4.0: 5}


@dataclass(frozen=True, slots=True)
class Trial:
    """One training: ``duration`` in seconds of work on ``slots`` slots of one agent."""

    id: str
    duration: float


@dataclass(frozen=True, slots=True, eq=False)
class Experiment:
    """``submitted``: seconds since the week began. At most ``at_once`` of its trials wait or run."""

    id: int
    user: int
    submitted: float
    slots: int
    priority: int
    weight: float
    at_once: int
    trials: tuple[Trial, ...]

    @property
    def work(self) -> float:
        """Slot-seconds."""
        return self.slots * sum(trial.duration for trial in self.trials)


def draw(seed: int) -> list[Experiment]:
    """The experiments of a week, in the order of their submission."""
    stream = random.Random(seed)
    wanted = LOAD * AGENTS * SLOTS * WEEK_S
    found: list[Experiment] = []
    drawn = 0.0
    while drawn < wanted:
        burst = stream.choices([1, 5], [9, 1])[0]
        user, begun = stream.randrange(USERS), _working_hour(stream)
        for _ in range(burst):
            begun += stream.expovariate(1 / 120)
            one = _experiment(stream, len(found), user, min(begun, WEEK_S - 1))
            found.append(one)
            drawn += one.work
    return sorted(found, key=lambda one: one.submitted)


def _experiment(stream: random.Random, number: int, user: int, submitted: float) -> Experiment:
    count = _one_of(stream, TRIALS)
    durations = [
        min(LONGEST_S, stream.lognormvariate(math.log(MEDIAN_S), SIGMA)) for _ in range(count)
    ]
    return Experiment(
        number,
        user,
        submitted,
        slots=_one_of(stream, WIDTHS),
        priority=_one_of(stream, PRIORITIES),
        weight=_one_of(stream, WEIGHTS),
        at_once=min(16, count),
        trials=tuple(Trial(f"{number}.{n}", taken) for n, taken in enumerate(durations)),
    )


def _one_of(stream: random.Random, often: dict[Value, int]) -> Value:
    return stream.choices(list(often), list(often.values()))[0]


def _working_hour(stream: random.Random) -> float:
    """A moment of the week: five times as likely by day as by night, twice on weekdays."""
    while True:
        moment = stream.uniform(0, WEEK_S)
        day, hour = divmod(moment, DAY_S)
        likely = (1.0 if 9 * HOUR_S <= hour < 20 * HOUR_S else 0.2) * (1.0 if day < 5 else 0.5)
        if stream.random() < likely:
            return moment
