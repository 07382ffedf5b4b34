"""A whole search in memory: no processes, no clock, the same result every time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from determined_searchers.errors import SearcherError
from determined_searchers.events import (
    Event,
    ExitReason,
    TrialClosed,
    TrialCreated,
    TrialExitedEarly,
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
from determined_searchers.searcher import Searcher, create_searcher
from determined_searchers.settings import Form

Metric = Callable[[dict[str, Any], int, int], "float | ExitReason | None"]
Observer = Callable[[Searcher, "Event | None", list[Operation]], "Searcher | None"]


@dataclass
class SimulatedTrial:
    """What became of one trial.

    Attributes:
        lengths: the lengths it was validated at, rising; in the reports form the times it reported
            at, empty where the search says nothing about time (the trial trains to its own end).
        exited: an :class:`ExitReason`'s name, or None if it ran its course.
    """

    request_id: str
    hparams: dict[str, Any]
    seed: int
    lengths: list[int] = field(default_factory=list)
    exited: str | None = None


@dataclass
class SimulationResult:
    """The trials in the order of their creation, and how the search ended.

    ``end`` is "completed", "canceled" or "errored"; ``error`` says why the searcher itself gave up.
    """

    trials: list[SimulatedTrial]
    end: str
    error: str | None = None


def simulate(
    config: Mapping[str, Any],
    metric: Metric | None = None,
    seed: int | None = None,
    workers: int | None = None,
    report_times: Iterable[int] | None = None,
    observe: Observer | None = None,
) -> SimulationResult:
    """Runs the search of ``config`` to its end.

    Args:
        config: a complete experiment configuration.
        metric: called with hyperparameters, length and the trial's number (from 0) at each
            validation. Returns the metric, or an :class:`ExitReason` to exit early with. Default:
            uniform random numbers from ``seed``.
        seed: in place of the configuration's experiment seed (which may then be missing).
        workers: how many trials train at the same time; others wait, first come first served.
            Default: all that have something to do.
        report_times: reports form: when each trial reports, in units of the time metric, rising.
            Default: 1, 2 .. ``max_time``; once, where the searcher has no ``max_time``.
        observe: called after each event (None: the start) with its operations. A searcher it
            returns takes the place of the one at work.

    Trials that train take turns, one validation each. Raises SearcherError for a configuration
    that is refused; what the searcher raises later is in the result.
    """
    if seed is None:
        seed = (config.get("reproducibility") or {}).get("experiment_seed") or 0
    searcher = create_searcher({**config, "reproducibility": {"experiment_seed": seed}})
    if metric is None:
        draw = random.Random(seed).random
        metric = lambda hparams, length, trial: draw()  # noqa: E731
    max_time = config["searcher"].get("max_time") if searcher.form is Form.REPORTS else None
    times = list(report_times) if report_times else list(range(1, (max_time or 1) + 1))
    return _Simulation(searcher, metric, workers, times, max_time is not None, observe).run()


@dataclass
class _Runner:
    """A trial as the simulated cluster sees it."""

    index: int
    trial: SimulatedTrial
    times: Iterator[int]
    target: int | None = None
    ending: bool = False
    busy: bool = False  # holds a worker or waits for one
    closed: bool = False


class _Simulation:
    def __init__(
        self,
        searcher: Searcher,
        metric: Metric,
        workers: int | None,
        times: list[int],
        timed: bool,
        observe: Observer | None,
    ) -> None:
        self.searcher = searcher
        self.metric = metric
        self.workers = workers
        self.times = times
        self.timed = timed
        self.observe = observe
        self.runners: dict[str, _Runner] = {}
        self.running: deque[_Runner] = deque()
        self.waiting: deque[_Runner] = deque()
        self.events: deque[Event] = deque()
        self.end: Shutdown | None = None

    def run(self) -> SimulationResult:
        error = None
        try:
            self.carry_out(None)
            while self.end is None:
                if self.events:
                    self.carry_out(self.events.popleft())
                else:
                    self.train()
        except SearcherError as failure:
            error = str(failure)
        failed = error is not None or (self.end is not None and self.end.failure)
        canceled = self.end is not None and self.end.cancel
        trials = [runner.trial for runner in self.runners.values()]
        return SimulationResult(
            trials, "errored" if failed else "canceled" if canceled else "completed", error
        )

    def carry_out(self, event: Event | None) -> None:
        """Tells the searcher and does as it says."""
        if event is None:
            operations = self.searcher.initial_operations()
        else:
            operations = self.searcher.handle(event)
        for operation in operations:
            self.apply(operation)
        if self.observe:
            self.searcher = self.observe(self.searcher, event, operations) or self.searcher

    def apply(self, operation: Operation) -> None:
        match operation:
            case Create():
                trial = SimulatedTrial(operation.request_id, operation.hparams, operation.seed)
                runner = _Runner(len(self.runners), trial, iter(self.times))
                self.runners[operation.request_id] = runner
                self.events.append(TrialCreated(operation.request_id))
                if self.searcher.form is Form.REPORTS:
                    self.queue(runner)
            case ValidateAfter():
                runner = self.runners[operation.request_id]
                runner.target = operation.length
                self.queue(runner)
            case Close() | Stop():
                runner = self.runners[operation.request_id]
                runner.ending = True
                if not runner.busy:
                    self.close(runner)
            case Shutdown():
                self.end = operation
            case SetProgress():
                pass

    def queue(self, runner: _Runner) -> None:
        if not runner.busy and not runner.closed:
            runner.busy = True
            self.waiting.append(runner)

    def close(self, runner: _Runner) -> None:
        if not runner.closed:
            runner.closed = True
            self.events.append(TrialClosed(runner.trial.request_id))

    def train(self) -> None:
        """The trial whose turn it is trains to its next validation."""
        while self.waiting and (self.workers is None or len(self.running) < self.workers):
            self.running.append(self.waiting.popleft())
        if not self.running:
            paused = sum(not runner.closed for runner in self.runners.values())
            raise RuntimeError(
                f"the searcher has nothing left to do and did not end: {paused} trials are paused"
            )
        runner = self.running.popleft()
        if self.searcher.form is Form.REPORTS:
            more = self.report(runner)
        else:
            more = self.validate(runner)
        if more:
            self.running.append(runner)
        else:
            runner.busy = False
            if runner.ending:
                self.close(runner)

    def validate(self, runner: _Runner) -> bool:
        """One ValidateAfter. True if the trial goes on at once with another."""
        if runner.target is None:
            raise RuntimeError(f"trial {runner.index} was started with nothing to do")
        length, runner.target = runner.target, None
        trial = runner.trial
        value = self.metric(trial.hparams, length, runner.index)
        if isinstance(value, ExitReason):
            self.exit(runner, value)
            return False
        trial.lengths.append(length)
        self.carry_out(ValidationCompleted(trial.request_id, value, length))
        return runner.target is not None

    def report(self, runner: _Runner) -> bool:
        """One report. True if the trial has more to train."""
        time = next(runner.times, None)
        if time is None or runner.ending:
            runner.ending = True
            return False
        trial = runner.trial
        value = self.metric(trial.hparams, time, runner.index)
        if isinstance(value, ExitReason):
            self.exit(runner, value)
            return False
        if self.timed:
            trial.lengths.append(time)
        self.carry_out(TrialReported(trial.request_id, time, value, time))
        return not runner.ending

    def exit(self, runner: _Runner, reason: ExitReason) -> None:
        runner.trial.exited = reason.value
        runner.ending = True
        self.events.append(TrialExitedEarly(runner.trial.request_id, reason))
