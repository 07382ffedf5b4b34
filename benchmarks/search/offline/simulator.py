"""W virtual workers in simulated time, and the one interface all tools are driven through.

One epoch of a configuration takes its `epoch_cost`; nothing else takes time, but for picking up a
paused trial where that is given a price. What the tool itself computes is measured apart.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from typing import Protocol

from benchmarks.search.offline.space import Config
from benchmarks.search.offline.tasks import MAX_EPOCHS, Outcome, Outcomes

INVALID_COST = 0.1  # of an epoch, until training has refused its configuration


class Decision(Enum):
    """The answer to a report. STOP and PAUSE both free the worker."""

    CONTINUE = "continue"
    STOP = "stop"
    PAUSE = "pause"


class EndReason(Enum):
    """Why a trial ended by itself."""

    CRASHED = "crashed"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Job:
    """A trial to start or to go on with.

    ``trial``: its number, from 0 in the order of creation. ``config``: None takes number ``trial``
    of the task's stream; not looked at when the trial goes on.
    """

    trial: int
    config: Config | None = None


class Tool(Protocol):
    """A search, asked and told."""

    def next_job(self) -> Job | None:
        """Work for a free worker. None: nothing to do until the next report."""
        ...

    def report(self, trial: int, epoch: int, loss: float) -> Decision:
        """``trial`` has this loss after ``epoch`` epochs in all; called for each epoch."""
        ...

    def exited(self, trial: int, reason: EndReason) -> None:
        """``trial`` ended by itself; it reports no more."""
        ...


@dataclass
class Run:
    """What a search achieved.

    Attributes:
        incumbents: (time, regret) at each change of the trial with the best loss seen so far.
        busy: worker time spent training.
        first_full: when the first trial reached its last epoch, or None.
        trials, epochs: how many were started, trained.
        tool_seconds: CPU seconds spent inside the tool.
    """

    incumbents: list[tuple[float, float]] = field(default_factory=list)
    busy: float = 0.0
    first_full: float | None = None
    trials: int = 0
    epochs: int = 0
    tool_seconds: float = 0.0


class _Trial:
    __slots__ = ("epoch", "outcome")

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.epoch = 0  # epochs reported


def simulate(
    outcomes: Outcomes,
    tool: Tool,
    workers: int,
    horizon: float,
    resume_cost: float = 0.0,
) -> Run:
    """Runs ``tool`` until ``horizon``, in units of a mean epoch.

    ``resume_cost``: what picking up a paused trial costs, in epochs of that trial. Of things that
    happen at the same time, the one begun first comes first.
    """
    return _Simulation(outcomes, tool, workers, horizon, resume_cost).run()


class _Simulation:
    def __init__(
        self, outcomes: Outcomes, tool: Tool, workers: int, horizon: float, resume_cost: float
    ) -> None:
        self.outcomes = outcomes
        self.tool = tool
        self.free = workers
        self.horizon = horizon
        self.resume_cost = resume_cost
        self.result = Run()
        self.trials: dict[int, _Trial] = {}
        self.events: list[tuple[float, int, int]] = []  # end of an epoch: time, order, trial
        self.begun = 0
        self.best = float("inf")

    def run(self) -> Run:
        self.fill(0.0)
        while self.events and self.events[0][0] <= self.horizon:
            now, _, number = heappop(self.events)
            if self.epoch_ended(now, number):
                self.begin(now, number)
            else:
                self.free += 1
            if self.free:
                self.fill(now)
        return self.result

    def fill(self, now: float) -> None:
        """Gives free workers work."""
        while self.free:
            start = time.thread_time()
            job = self.tool.next_job()
            self.result.tool_seconds += time.thread_time() - start
            if job is None:
                return
            trial = self.trials.get(job.trial)
            delay = 0.0
            if trial is None:
                if job.config is None:
                    outcome = self.outcomes.drawn(job.trial)[1]
                else:
                    outcome = self.outcomes.task.outcome(job.config)
                trial = self.trials[job.trial] = _Trial(outcome)
                self.result.trials += 1
            elif trial.epoch:
                delay = self.resume_cost * trial.outcome.epoch_cost
            self.free -= 1
            self.begin(now + delay, job.trial)

    def begin(self, now: float, number: int) -> None:
        """The trial's next epoch."""
        outcome = self.trials[number].outcome
        cost = outcome.epoch_cost * (INVALID_COST if outcome.invalid else 1)
        self.result.busy += max(min(now + cost, self.horizon) - now, 0.0)
        self.begun += 1
        heappush(self.events, (now + cost, self.begun, number))

    def epoch_ended(self, now: float, number: int) -> bool:
        """Tells the tool. True if the trial goes on."""
        trial = self.trials[number]
        outcome = trial.outcome
        if outcome.invalid or outcome.fails_at == trial.epoch + 1:
            start = time.thread_time()
            self.tool.exited(number, EndReason.INVALID if outcome.invalid else EndReason.CRASHED)
            self.result.tool_seconds += time.thread_time() - start
            return False
        loss = outcome.losses[trial.epoch]
        trial.epoch += 1
        self.result.epochs += 1
        if loss < self.best:
            self.best = loss
            self.result.incumbents.append((now, outcome.regret))
        if trial.epoch == MAX_EPOCHS and self.result.first_full is None:
            self.result.first_full = now
        start = time.thread_time()
        decision = self.tool.report(number, trial.epoch, loss)
        self.result.tool_seconds += time.thread_time() - start
        return decision is Decision.CONTINUE
