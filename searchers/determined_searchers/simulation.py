"""A whole search in memory on a virtual clock: no processes, the same result every time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
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
Cost = Callable[[dict[str, Any], int, int], float]
Observer = Callable[[Searcher, "Event | None", list[Operation]], "Searcher | None"]


@dataclass(slots=True)
class SimulatedTrial:
    """The course of one trial. Times are virtual seconds since the search began.

    Attributes:
        lengths: the lengths at which it was validated, rising. In the reports form the times at which it
        reported; empty if the search has no time metric (the trial trains to its own end). metrics: the
        reported metrics, one per validation. exited: an :class:`ExitReason`'s name, or None if it ran its
        course. created: when the searcher asked for it. started: when it first got a worker; None: never.
        validated: when each validation was reported. promoted: when it was asked to train on after a
        validation (operations form). closed: when it was over; None: it was still open when the search
        ended. busy: seconds it held a worker.
    """

    request_id: str
    hparams: dict[str, Any]
    seed: int
    lengths: list[int] = field(default_factory=list)
    exited: str | None = None
    metrics: list[float | None] = field(default_factory=list)
    created: float = 0.0
    started: float | None = None
    validated: list[float] = field(default_factory=list)
    promoted: list[float] = field(default_factory=list)
    closed: float | None = None
    busy: float = 0.0


@dataclass
class SimulationResult:
    """The trials in the order of their creation, and how the search went.

    Attributes:
        end: "completed", "canceled" or "errored". error: why the searcher itself failed, or None. duration:
        virtual seconds from the first trial to the end of the search. busy: worker-seconds of training,
        resumes included. workers: the number of workers; without a limit, the number used at the peak.
        peak_trials: the most trials that trained at the same time. total_units: length trained by all
        trials together, including trials that exited; None if trials train to their own end.
        smaller_is_better: as configured.
    """

    trials: list[SimulatedTrial]
    end: str
    error: str | None = None
    duration: float = 0.0
    busy: float = 0.0
    workers: int = 0
    peak_trials: int = 0
    total_units: int | None = None
    smaller_is_better: bool = True

    @property
    def utilisation(self) -> float:
        """The share, 0..1, of the workers' time that went into training."""
        offered = self.workers * self.duration
        return self.busy / offered if offered else 0.0

    def best_over_time(self) -> list[tuple[float, float, SimulatedTrial]]:
        """Each improvement of the best metric: the time, the metric, and the trial."""
        sign = 1 if self.smaller_is_better else -1
        reports = sorted(
            (time, place, metric)
            for place, trial in enumerate(self.trials)
            for time, metric in zip(trial.validated, trial.metrics, strict=True)
            if metric is not None and metric == metric  # not NaN
        )
        best: list[tuple[float, float, SimulatedTrial]] = []
        for time, place, metric in reports:
            if not best or sign * metric < sign * best[-1][1]:
                best.append((time, metric, self.trials[place]))
        return best


def simulate(
    config: Mapping[str, Any],
    metric: Metric | None = None,
    *,
    seed: int | None = None,
    workers: int | None = None,
    cost: float | Cost = 1.0,
    resume_cost: float = 0.0,
    report_times: Iterable[int] | None = None,
    observe: Observer | None = None,
) -> SimulationResult:
    """Runs the search of ``config`` to its end.

    Args:
        config: a complete experiment configuration.
        metric: called with hyperparameters, length and the trial's number (from 0) at each
            validation. Returns the metric, or an :class:`ExitReason` to exit early with. Default:
            uniform random numbers from ``seed``.
        seed: in place of the configuration's experiment seed (which may then be missing). workers: how many
        trials train at the same time; other trials wait, first come first served. A paused trial holds no
        worker. Default: one for each trial that has something to do. cost: virtual seconds of training: a
        number per unit of length, or a function of
            hyperparameters, length so far and length to train to. Default: 1 per unit.
        resume_cost: seconds that a trial takes to get going again after a pause.
        report_times: reports form: when each trial reports, in units of the time metric, rising.
            Default: 1, 2 .. ``max_time``; once, where the searcher has no ``max_time``.
        observe: called after each event (None: the start) with its operations. If it returns a searcher,
        that searcher replaces the current one.

    Decisions take no time. Things that end at the same moment are handled in the order in which they began.
    Raises SearcherError for a configuration that is refused, ValueError for workers or costs out of range.
    An error that the searcher raises later is in the result.
    """
    if seed is None:
        seed = (config.get("reproducibility") or {}).get("experiment_seed") or 0
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    searcher = create_searcher({**config, "reproducibility": {"experiment_seed": seed}})
    if metric is None:
        draw = random.Random(seed).random
        metric = lambda hparams, length, trial: draw()  # noqa: E731
    section = config["searcher"]
    max_time = section.get("max_time") if searcher.form is Form.REPORTS else None
    times = tuple(report_times) if report_times else range(1, (max_time or 1) + 1)
    run = _Simulation(searcher, metric, workers, cost, resume_cost, times, observe)
    run.run()
    end = run.end or Shutdown(failure=run.error is not None)
    has_lengths = searcher.form is Form.OPERATIONS or max_time is not None
    trials = [runner.trial for runner in run.runners.values()]
    if not has_lengths:
        for trial in trials:
            trial.lengths.clear()
    return SimulationResult(
        trials=trials,
        end="errored" if end.failure else "canceled" if end.cancel else "completed",
        error=run.error,
        duration=run.now,
        busy=sum(trial.busy for trial in trials),
        workers=workers or run.peak,
        peak_trials=run.peak,
        total_units=run.units if has_lengths else None,
        smaller_is_better=section.get("smaller_is_better") is not False,
    )


@dataclass(slots=True)
class _Runner:
    """A trial as the simulated cluster sees it."""

    index: int
    trial: SimulatedTrial
    target: int | None = None  # length to train to, when the trial has something to do
    length: int = 0  # trained so far
    reports: int = 0  # reports form: made so far
    queued: bool = False
    turn: int = 0  # number of the stretch of training it is in; 0: it holds no worker
    since: float = 0.0  # when that began
    ending: bool = False


class _Simulation:
    def __init__(
        self,
        searcher: Searcher,
        metric: Metric,
        workers: int | None,
        cost: float | Cost,
        resume_cost: float,
        times: range | tuple[int, ...],
        observe: Observer | None,
    ) -> None:
        self.searcher = searcher
        self.reports_form = searcher.form is Form.REPORTS
        self.metric = metric
        self.workers = workers
        self.cost = cost
        self.resume_cost = _seconds(resume_cost, "resume_cost")
        self.times = times
        self.observe = observe
        self.now = 0.0
        self.runners: dict[str, _Runner] = {}
        self.training: list[tuple[float, int, _Runner]] = []  # heap of ends of stretches
        self.working = 0
        self.turns = 0
        self.queue: deque[_Runner] = deque()
        self.events: deque[Event] = deque()
        self.peak = 0
        self.units = 0
        self.end: Shutdown | None = None
        self.error: str | None = None

    def run(self) -> None:
        try:
            self.carry_out(None)
            while self.end is None:
                if self.events:
                    self.carry_out(self.events.popleft())
                elif self.queue and (self.workers is None or self.working < self.workers):
                    self.start(self.queue.popleft())
                elif self.training:
                    self.finish(*heappop(self.training))
                else:
                    paused = sum(trial.trial.closed is None for trial in self.runners.values())
                    raise RuntimeError(
                        f"the searcher has nothing left to do but did not end: {paused} trials "
                        f"are paused"
                    )
        except SearcherError as failure:
            self.error = str(failure)

    def carry_out(self, event: Event | None) -> None:
        """Pass an event to the searcher and carry out its operations."""
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
            case Create(request_id, hparams, seed):
                trial = SimulatedTrial(request_id, hparams, seed, created=self.now)
                runner = self.runners[request_id] = _Runner(len(self.runners), trial)
                self.events.append(TrialCreated(request_id))
                if self.reports_form:
                    runner.target = self.times[0]
                    self.enqueue(runner)
            case ValidateAfter(request_id, length):
                runner = self.runners[request_id]
                runner.target = length
                if runner.trial.validated:
                    runner.trial.promoted.append(self.now)
                if not runner.turn:
                    self.enqueue(runner)
            case Close(request_id):
                self.finish_off(self.runners[request_id])
            case Stop(request_id):
                runner = self.runners[request_id]
                runner.target = None
                runner.queued = False
                self.release(runner)
                self.finish_off(runner)
            case Shutdown():
                self.end = operation
            case SetProgress():
                pass

    def enqueue(self, runner: _Runner) -> None:
        if not runner.queued and runner.trial.closed is None:
            runner.queued = True
            self.queue.append(runner)

    def finish_off(self, runner: _Runner) -> None:
        """The trial is over as soon as it has nothing more to do."""
        runner.ending = True
        if not (runner.turn or runner.queued) and runner.trial.closed is None:
            runner.trial.closed = self.now
            self.events.append(TrialClosed(runner.trial.request_id))

    def start(self, runner: _Runner) -> None:
        """Gives the trial a worker."""
        if not runner.queued:  # stopped while it waited
            return
        runner.queued = False
        self.working += 1
        self.peak = max(self.peak, self.working)
        if runner.trial.started is None:
            runner.trial.started = self.now
            self.train(runner, 0.0)
        else:
            self.train(runner, self.resume_cost)

    def train(self, runner: _Runner, seconds: float) -> None:
        """Begins the stretch to the trial's target, which takes ``seconds`` more than its cost."""
        target, length = runner.target, runner.length
        if target is None:
            raise RuntimeError(f"trial {runner.index} was started with nothing to do")
        if callable(self.cost):
            seconds += _seconds(self.cost(runner.trial.hparams, length, target), "cost")
        else:
            seconds += _seconds(self.cost * (target - length), "cost")
        self.turns += 1
        runner.turn, runner.since = self.turns, self.now
        heappush(self.training, (self.now + seconds, self.turns, runner))

    def release(self, runner: _Runner) -> None:
        """Takes the trial's worker, if it holds one."""
        if runner.turn:
            runner.trial.busy += self.now - runner.since
            runner.turn = 0
            self.working -= 1

    def finish(self, time: float, turn: int, runner: _Runner) -> None:
        """Handle that the trial has reached its target."""
        if turn != runner.turn or runner.target is None:  # stopped on its way
            return
        self.now = time
        trial, length = runner.trial, runner.target
        runner.target = None
        self.units += length - runner.length
        runner.length = length
        value = self.metric(trial.hparams, length, runner.index)
        if isinstance(value, ExitReason):
            trial.exited = value.value
            self.release(runner)
            self.events.append(TrialExitedEarly(trial.request_id, value))
            self.finish_off(runner)
            return
        trial.lengths.append(length)
        trial.metrics.append(value)
        trial.validated.append(time)
        if self.reports_form:
            self.carry_out(TrialReported(trial.request_id, length, value, length))
            runner.reports += 1
            if not runner.ending and runner.reports < len(self.times):
                runner.target = self.times[runner.reports]
            else:
                runner.ending = True
        else:
            self.carry_out(ValidationCompleted(trial.request_id, value, length))
        if runner.target is not None and self.end is None:  # on the same worker, without a pause
            trial.busy += time - runner.since
            self.train(runner, 0.0)
        else:
            self.release(runner)
            if runner.ending:
                self.finish_off(runner)


def _seconds(value: float, what: str) -> float:
    if not 0 <= value < float("inf"):
        raise ValueError(f"{what} must be a number of seconds of at least 0, not {value!r}")
    return value
