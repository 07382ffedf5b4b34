"""The offline benchmark's clock and workers, and our searchers behind its interface."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.search.offline.cells import Cell, CellRunner
from benchmarks.search.offline.ours import SEARCHERS, make_search
from benchmarks.search.offline.simulator import Decision, EndReason, Job, Run, simulate
from benchmarks.search.offline.space import Config, Param
from benchmarks.search.offline.tasks import MAX_EPOCHS, Outcome, Outcomes, Task


class Script(Task):
    """Number i of the stream costs ``costs[i]`` per epoch; its losses are i + 1/epoch."""

    space = (Param("number", "float", 0, 100),)

    def __init__(self, costs: list[float], **faults) -> None:
        super().__init__("script", 0)
        self.costs = costs
        self.faults = faults

    def stream(self) -> Iterator[Config]:
        return iter([{"number": float(i)} for i in range(len(self.costs))])

    def outcome(self, config: Config) -> Outcome:
        number = int(config["number"])
        losses = [number + 1 / epoch for epoch in range(1, MAX_EPOCHS + 1)]
        faults = self.faults if number == 0 else {}
        return Outcome(losses, float(number), self.costs[number], **faults)


class Recorder:
    """Starts new trials up to ``limit``; stops each after ``epochs``; records all calls."""

    def __init__(self, limit: int, epochs: int) -> None:
        self.limit = limit
        self.epochs = epochs
        self.started = 0
        self.told: list[tuple] = []

    def next_job(self) -> Job | None:
        if self.started == self.limit:
            return None
        self.started += 1
        return Job(self.started - 1)

    def report(self, trial: int, epoch: int, loss: float) -> Decision:
        self.told.append((trial, epoch))
        return Decision.STOP if epoch == self.epochs else Decision.CONTINUE

    def exited(self, trial: int, reason: EndReason) -> None:
        self.told.append((trial, reason))


def run(task: Task, tool, workers: int, horizon: float, resume_cost: float = 0.0) -> Run:
    return simulate(Outcomes(task), tool, workers, horizon, resume_cost)


def test_reports_come_in_the_order_of_time() -> None:
    tool = Recorder(limit=3, epochs=2)
    result = run(Script([1.0, 0.4, 0.7]), tool, workers=2, horizon=100)
    # Trial 1 ends at 0.8 and makes room for trial 2, which reports at 1.5 and 2.2.
    assert tool.told == [(1, 1), (1, 2), (0, 1), (2, 1), (0, 2), (2, 2)]
    assert (result.trials, result.epochs) == (3, 6)
    assert result.busy == pytest.approx(2 + 0.8 + 1.4)
    assert result.incumbents == [(0.4, 1.0), (0.8, 1.0), (1.0, 0.0), (2.0, 0.0)]


def test_of_two_at_once_the_one_begun_first_reports_first() -> None:
    tool = Recorder(limit=3, epochs=3)
    run(Script([1.0, 1.0, 1.0]), tool, workers=3, horizon=100)
    assert tool.told == [(trial, epoch) for epoch in (1, 2, 3) for trial in (0, 1, 2)]


def test_nothing_is_reported_after_the_horizon() -> None:
    tool = Recorder(limit=1, epochs=10)
    result = run(Script([1.0]), tool, workers=1, horizon=3.5)
    assert tool.told == [(0, 1), (0, 2), (0, 3)]
    assert result.busy == pytest.approx(3.5)


def test_the_first_full_training_is_noted() -> None:
    result = run(Script([0.5]), Recorder(limit=1, epochs=MAX_EPOCHS), workers=1, horizon=100)
    assert result.first_full == pytest.approx(MAX_EPOCHS * 0.5)


def test_crashed_and_invalid_trials_free_their_worker() -> None:
    tool = Recorder(limit=2, epochs=1)
    run(Script([1.0, 1.0], fails_at=1), tool, workers=1, horizon=10)
    assert tool.told == [(0, EndReason.CRASHED), (1, 1)]
    tool = Recorder(limit=2, epochs=1)
    result = run(Script([1.0, 1.0], invalid=True), tool, workers=1, horizon=10)
    assert tool.told == [(0, EndReason.INVALID), (1, 1)]
    assert result.busy == pytest.approx(1.1)


class Alternator:
    """Two trials on one worker, one epoch each in turn."""

    def __init__(self) -> None:
        self.turn = 0

    def next_job(self) -> Job:
        self.turn += 1
        return Job(self.turn % 2)

    def report(self, trial: int, epoch: int, loss: float) -> Decision:
        return Decision.PAUSE

    def exited(self, trial: int, reason: EndReason) -> None:
        raise AssertionError


def test_going_on_with_a_paused_trial_has_its_price() -> None:
    free = run(Script([1.0, 1.0]), Alternator(), workers=1, horizon=10)
    dear = run(Script([1.0, 1.0]), Alternator(), workers=1, horizon=10, resume_cost=0.5)
    assert free.epochs == 10
    # Two epochs at once, then one each 1.5.
    assert dear.epochs == 2 + 5


@pytest.mark.parametrize("name", [name for name in SEARCHERS if name != "tpe"])
def test_our_searchers_run_and_repeat_themselves(name: str) -> None:
    runner = CellRunner(
        lambda cell, outcomes: make_search(cell.tool, outcomes.task, cell.seed, cell.workers)
    )
    for task in ("T1 curves4", "T6 faulty"):
        cell = Cell(name, task, seed=1, workers=4, horizon=3.0)
        first, second = runner.run(cell), runner.run(cell)
        for measured in ("tool_us_per_trial", "seconds"):
            del first[measured], second[measured]
        assert first == second
        assert first["utilisation"] > 0.95
        assert first["regret"][1] is None  # past the horizon
        if name != "random":
            assert first["trials"] > 4 * 3


def test_promotion_trains_no_epoch_twice() -> None:
    class Watch:
        def __init__(self, tool) -> None:
            self.tool = tool
            self.epochs: dict[int, int] = {}

        def next_job(self):
            return self.tool.next_job()

        def report(self, trial: int, epoch: int, loss: float) -> Decision:
            assert epoch == self.epochs.get(trial, 0) + 1
            self.epochs[trial] = epoch
            return self.tool.report(trial, epoch, loss)

        def exited(self, trial: int, reason: EndReason) -> None:
            self.tool.exited(trial, reason)

    from benchmarks.search.offline.tasks import make_task

    task = make_task("T1 curves4", 0)
    watch = Watch(make_search("promotion aggressive", task, 0, workers=4))
    simulate(Outcomes(task), watch, workers=4, horizon=3 * MAX_EPOCHS)
    reached = set(watch.epochs.values())
    assert {1, 3, 9, 27} <= reached
    # All trials except the four running ones wait at a rung.
    assert sum(epoch not in (1, 3, 9, 27, 81) for epoch in watch.epochs.values()) <= 4
