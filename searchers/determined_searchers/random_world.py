"""Trials that behave at random, within the limits of a search method's contract."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from random import Random

from determined_searchers.events import (
    Event,
    ExitReason,
    TrialClosed,
    TrialCreated,
    TrialExitedEarly,
    TrialProgress,
    TrialReported,
    ValidationCompleted,
)
from determined_searchers.operations import (
    Close,
    Create,
    Operation,
    SetProgress,
    Shutdown,
    Stop,
    ValidateAfter,
)

ODD_METRICS = (math.nan, None, math.inf, -math.inf)
OWN_END = 12.0
"""Reports form: the time after which a trial's own code ends, if nothing stops it."""


@dataclass(slots=True)
class Life:
    """A trial as the random cluster sees it."""

    target: int | None = None
    reached: int = 0  # longest target answered
    time: float = 0.0  # of its last report
    over: bool = False  # told to end, or ended by itself
    exited: bool = False


class RandomWorld:
    """A cluster that lets one random thing happen at every turn, and checks the operations it gets.

    Args:
        random: decides what happens.
        reports: whether the search is in the reports form.
        workers: how many trials train at the same time, first come first served; None: all.
        exits: the chance, at every turn, that a trial exits early.
        odd: the chance that a metric is NaN, missing or infinite.
        levels: how many different metrics there are; few make many ties.

    Attributes:
        creates: all trials that were asked for, in order.
        live: those that are not closed.
        ended: the Shutdown, once it was given.
    """

    def __init__(
        self,
        random: Random,
        reports: bool,
        workers: int | None = None,
        exits: float = 0.0,
        odd: float = 0.1,
        levels: int = 1000,
    ) -> None:
        self.random = random
        self.reports = reports
        self.workers = workers
        self.exits = exits
        self.odd = odd
        self.levels = levels
        self.creates: list[Create] = []
        self.known: set[str] = set()
        self.live: dict[str, Life] = {}
        self.queue: deque[str] = deque()  # trials with something to train, in the order of asking
        self.ended: Shutdown | None = None

    @property
    def at_work(self) -> int:
        """The number of trials that have something to train."""
        return sum(
            not life.over if self.reports else life.target is not None
            for life in self.live.values()
        )

    def apply(self, operations: list[Operation]) -> None:
        """Carry out the searcher's operations. AssertionError for operations that are not allowed."""
        for operation in operations:
            assert self.ended is None, f"{operation} after the Shutdown"
            match operation:
                case Create(request_id):
                    assert request_id not in self.known, f"{request_id} was created before"
                    self.known.add(request_id)
                    self.creates.append(operation)
                    self.live[request_id] = Life()
                    if self.reports:
                        self.queue.append(request_id)
                case ValidateAfter(request_id, length):
                    assert not self.reports, "ValidateAfter in the reports form"
                    life = self.live[request_id]
                    assert not life.exited, f"{operation}, which has exited"
                    assert life.target is None, f"{operation} before {life.target} was answered"
                    assert length >= life.reached, f"{operation}, after {life.reached}"
                    life.target = length
                    self.queue.append(request_id)
                case Close(request_id):
                    assert not self.reports, "Close in the reports form"
                    self.live[request_id].over = True
                case Stop(request_id):
                    assert self.reports, "Stop in the operations form"
                    self.live[request_id].over = True
                case SetProgress(progress):
                    assert 0 <= progress <= 1, operation
                case Shutdown():
                    self.ended = operation

    def next_event(self) -> Event:
        """Choose the next event. AssertionError if none is possible although the search has not ended."""
        if self.random.random() < self.exits and (event := self._exit()):
            return event
        if self.random.random() < 0.1:
            trial = self.random.choice(list(self.live))
            if self.random.random() < 0.5:
                return TrialCreated(trial)
            return TrialProgress(trial, self.random.uniform(0, 10))
        return self._work()

    def disturbances(self, past: list[Event]) -> list[Event]:
        """Events that must change nothing: some of ``past`` again, reports that come too late, and events
        of unknown trials.
        """
        again = [self.random.choice(past) for _ in range(min(len(past), 3))]
        again += past[-2:]
        stranger = "00000000-0000-4000-8000-000000000000"
        again += [TrialClosed(stranger), ValidationCompleted(stranger, 0.5, 1)]
        for trial, life in self.live.items():
            if self.reports and life.time > 0:
                again.append(TrialReported(trial, life.time / 2, 0.1))
            elif life.reached > 1 and life.target != life.reached - 1:
                again.append(ValidationCompleted(trial, 0.1, life.reached - 1))
        return [event for event in again if not self._is_news(event)]

    def _is_news(self, event: Event) -> bool:
        """True if a repeated event might be a new one: rungs may have the same length."""
        if isinstance(event, ValidationCompleted) and event.request_id in self.live:
            return self.live[event.request_id].target == event.length
        return isinstance(event, TrialProgress)

    def _exit(self) -> Event | None:
        """A trial exits. Only one whose code runs can call its hyperparameters invalid."""
        trial = self.random.choice(list(self.live))
        life = self.live[trial]
        if life.exited:
            return None
        runs = not life.over if self.reports else life.target is not None
        reason = self.random.choice([why for why in ExitReason if runs or not why.invalid])
        life.over = life.exited = True
        life.target = None
        return TrialExitedEarly(trial, reason)

    def _work(self) -> Event:
        """A trial with a worker reaches its next validation, or a trial that is over closes."""
        self.queue = deque(trial for trial in self.queue if self._trains(trial))
        training = list(self.queue)[: self.workers]
        over = [trial for trial, life in self.live.items() if life.over and life.target is None]
        able = training + over
        assert able, f"{len(self.live)} trials are paused but the search does not end"
        trial = self.random.choice(able)
        life = self.live[trial]
        if not self._trains(trial):
            del self.live[trial]
            return TrialClosed(trial)
        if not self.reports:
            self.queue.remove(trial)
            assert life.target is not None
            life.reached, life.target = max(life.reached, life.target), None
            return ValidationCompleted(trial, self._metric(), life.reached)
        life.time += self.random.choice([0.5, 1.0, 1.0, 3.0])
        if life.time > OWN_END:
            life.over = True
        return TrialReported(trial, life.time, self._metric())

    def _trains(self, trial: str) -> bool:
        life = self.live.get(trial)
        if life is None:
            return False
        return not life.over if self.reports else life.target is not None

    def _metric(self) -> float | None:
        if self.random.random() < self.odd:
            return self.random.choice(ODD_METRICS)
        return self.random.randrange(self.levels) / self.levels
