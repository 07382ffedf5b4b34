"""ASHA: layout of rungs and brackets, and both decision rules event by event."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from search_configs import config

from determined_searchers import (
    Close,
    Create,
    ExitReason,
    Operation,
    Searcher,
    SearcherError,
    Shutdown,
    Stop,
    TrialClosed,
    TrialExitedEarly,
    TrialReported,
    ValidateAfter,
    ValidationCompleted,
    create_searcher,
    restore_searcher,
    simulate,
)
from determined_searchers.brackets import (
    Bracket,
    bracket_rungs,
    lay_out,
    levels,
    natural_log,
    rung_lengths,
)
from determined_searchers.testing import store

# Layout


@pytest.mark.parametrize(
    ("length", "rungs", "divisor", "expected"),
    [
        (9000, 3, 3, [1000, 3000, 9000]),
        (1000, 5, 4, [3, 15, 62, 250, 1000]),
        (8, 4, 4, [1, 1, 2, 8]),
        (100, 3, 1.5, [44, 66, 100]),
        (7, 1, 4, [7]),
    ],
)
def test_rung_lengths(length: int, rungs: int, divisor: float, expected: list[int]) -> None:
    assert rung_lengths(length, rungs, divisor) == expected


@pytest.mark.parametrize(
    ("n", "divisor", "expected"),
    [
        (1, 4, 1),
        (3, 4, 1),
        (4, 4, 2),
        (16, 4, 3),
        (243, 3, 6),  # exact, where glibc's log falls short
        (59049, 3, 11),
        (1000, 10, 3),  # one short everywhere
        (10**6, 10, 6),
        (59049, 9, 5),
        (10, 1.5, 6),
    ],
)
def test_levels(n: int, divisor: float, expected: int) -> None:
    assert levels(n, divisor) == expected


@pytest.mark.parametrize("x", [1, 1.5, 2, 3, 10, 1000, 123456.789, 1e300])
def test_natural_log(x: float) -> None:
    assert natural_log(x) == pytest.approx(math.log(x), rel=1e-15)


@pytest.mark.parametrize(
    ("mode", "trials", "length", "expected"),
    [
        ("standard", 16, 1000, [(3, 12, 8), (2, 4, 8)]),
        ("standard", 128, 6400, [(4, 89, 6), (3, 29, 5), (2, 10, 5)]),
        ("standard", 500, 1000, [(5, 354, 6), (4, 110, 5), (3, 36, 5)]),
        ("aggressive", 500, 1000, [(5, 500, 16)]),
        (
            "conservative",
            500,
            1000,
            [(5, 341, 4), (4, 105, 3), (3, 35, 3), (2, 13, 3), (1, 6, 3)],
        ),
        ("standard", 1, 1000, [(1, 1, 16)]),
        ("standard", 500, 1, [(1, 500, 16)]),
    ],
)
def test_brackets(mode: str, trials: int, length: int, expected: list[tuple[int, ...]]) -> None:
    rungs = bracket_rungs(mode, 5, length, trials, 4.0)
    assert lay_out(rungs, trials, 16, 4.0) == [Bracket(*bracket) for bracket in expected]


def test_small_searches_round_up_to_the_number_of_brackets() -> None:
    assert lay_out([3, 2, 1], 2, 1, 4.0) == [Bracket(3, 1, 1), Bracket(2, 1, 1), Bracket(1, 1, 1)]


def test_without_a_cap_each_bracket_has_its_own() -> None:
    assert [bracket.cap for bracket in lay_out([3, 2], 16, 0, 4.0)] == [4, 4]
    assert [bracket.cap for bracket in lay_out([2, 1], 60, 0, 4.0)] == [20, 20]


# Driving a search by hand


class Bench:
    """One search; trials are called by the number of their creation."""

    def __init__(self, **fields: Any) -> None:
        self.config = config("async_halving", space={}, **fields)
        self.searcher: Searcher = create_searcher(self.config)
        self.ids: list[str] = []
        self.first = self.note(self.searcher.initial_operations())

    def note(self, operations: list[Operation]) -> list[Any]:
        """Operations as short words: "new 0", "0 to 3", "close 0" .."""
        words = []
        for operation in operations:
            match operation:
                case Create():
                    self.ids.append(operation.request_id)
                    words.append(f"new {len(self.ids) - 1}")
                case ValidateAfter():
                    words.append(f"{self.ids.index(operation.request_id)} to {operation.length}")
                case Close() | Stop():
                    words.append(f"{operation.type} {self.ids.index(operation.request_id)}")
                case Shutdown():
                    words.append(f"end {operation.cancel:d}{operation.failure:d}")
        # Every decision is made by a searcher that was saved and restored.
        self.searcher = restore_searcher(self.config, store(self.searcher.snapshot()))
        return words

    def validated(self, trial: int, metric: Any, length: int) -> list[Any]:
        return self.note(self.searcher.handle(ValidationCompleted(self.ids[trial], metric, length)))

    def reported(self, trial: int, metric: Any, time: float | None) -> list[Any]:
        return self.note(self.searcher.handle(TrialReported(self.ids[trial], time, metric)))

    def exited(self, trial: int, reason: str) -> list[Any]:
        return self.note(
            self.searcher.handle(TrialExitedEarly(self.ids[trial], ExitReason(reason)))
        )

    def closed(self, trial: int) -> list[Any]:
        return self.note(self.searcher.handle(TrialClosed(self.ids[trial])))


def promotion(**fields: Any) -> Bench:
    defaults = {
        "max_length": {"batches": 4},
        "divisor": 2,
        "num_rungs": 3,
        "max_trials": 4,
        "max_concurrent_trials": 2,
    }
    return Bench(**{**defaults, **fields})


def stopping(**fields: Any) -> Bench:
    return promotion(stop_once=True, **fields)


def reports(**fields: Any) -> Bench:
    return promotion(**{"max_length": None, "max_time": 4, "time_metric": "batches", **fields})


# Promotion


def test_promotion_of_a_whole_search() -> None:
    bench = promotion()
    assert bench.first == ["new 0", "0 to 1", "new 1", "1 to 1"]
    assert bench.validated(0, 0.3, 1) == ["new 2", "2 to 1"]  # 1 of 1: no quota yet
    assert bench.validated(1, 0.5, 1) == ["0 to 2"]  # quota 1: the paused 0 is the best
    assert bench.validated(2, 0.1, 1) == ["2 to 2"]  # better still, goes on beside it
    assert bench.validated(0, 0.3, 2) == ["new 3", "3 to 1"]  # alone in rung 1
    assert bench.validated(2, 0.1, 2) == ["2 to 4"]
    # Rung 0 is full; its quota grew to 2, but the second best is promoted already.
    assert bench.validated(3, 0.9, 1) == ["close 1", "close 3", "close 0"]
    assert bench.closed(1) == []
    assert bench.closed(0) == []
    assert bench.closed(3) == []
    assert bench.validated(2, 0.1, 4) == ["close 2"]
    assert bench.closed(2) == ["end 00"]


def test_the_metrics_sign() -> None:
    bench = promotion(smaller_is_better=False)
    bench.validated(0, 0.3, 1)
    assert bench.validated(1, 0.5, 1) == ["1 to 2"]


def test_nan_is_worst_and_later_equals_come_after() -> None:
    bench = promotion()
    bench.validated(0, float("nan"), 1)
    assert bench.validated(1, 0.5, 1) == ["1 to 2"]
    bench = promotion()
    bench.validated(0, 0.5, 1)
    assert bench.validated(1, 0.5, 1) == ["0 to 2"]


def test_a_share_that_grows_promotes_a_paused_trial() -> None:
    bench = promotion(max_trials=8, divisor=2, num_rungs=2, max_length=2)
    bench.validated(0, 0.1, 1)
    assert bench.validated(1, 0.2, 1) == ["0 to 2"]
    assert bench.validated(0, 0.1, 2) == ["close 0", "new 3", "3 to 1"]
    assert bench.validated(2, 0.3, 1) == ["new 4", "4 to 1"]  # 3 of 2: quota still 1
    assert bench.validated(3, 0.4, 1) == ["1 to 2"]  # quota 2: trial 1, long paused


def test_an_error_counts_as_the_worst() -> None:
    bench = promotion()
    assert bench.exited(0, "ERRORED") == ["new 2", "2 to 1"]
    assert bench.closed(0) == []
    assert bench.validated(1, 0.5, 1) == ["1 to 2"]
    assert bench.searcher.failures == 1


def test_a_promoted_trial_that_has_exited_is_measured_as_worst_at_once() -> None:
    bench = promotion(max_trials=3)
    bench.validated(0, 0.1, 1)  # starts 2; 0 is paused
    assert bench.exited(0, "USER_CANCELED") == []
    assert bench.closed(0) == []
    # Trial 0 is gone, but keeps its place in rung 1, so no other trial is left to start.
    assert bench.validated(1, 0.5, 1) == []
    assert bench.validated(2, 0.3, 1) == ["close 2", "close 1"]
    assert bench.closed(1) == []
    assert bench.closed(2) == ["end 00"]


@pytest.mark.parametrize("reason", ["INVALID_HP", "INIT_INVALID_HP"])
def test_an_invalid_trial_leaves_its_rungs_and_is_replaced(reason: str) -> None:
    bench = promotion(max_trials=2)
    bench.validated(0, 0.1, 1)
    assert bench.validated(1, 0.2, 1) == ["0 to 2", "close 1"]
    assert bench.exited(0, reason) == ["close 0", "new 2", "2 to 1"]
    assert bench.closed(0) == []
    assert bench.closed(1) == []
    # Trial 1 is closed: a replacement that is worse does not bring it back.
    assert bench.validated(2, 0.3, 1) == ["close 2"]
    assert bench.closed(2) == ["end 00"]


def test_progress_of_promotion() -> None:
    bench = promotion()
    assert bench.searcher.progress() == 0
    bench.validated(0, 0.1, 1)
    assert bench.searcher.progress() == pytest.approx(1 / 4.8)


def test_rungs_of_one_length_share_a_measurement() -> None:
    bench = promotion(max_length=4, divisor=4, num_rungs=4, max_trials=4, max_concurrent_trials=4)
    for trial in (0, 1, 2):
        assert bench.validated(trial, trial / 10, 1) == []
    # Rungs 0, 1 are both at length 1; trial 0 moves to rung 1 without training, alone there.
    assert bench.validated(3, 0.9, 1) == ["close 1", "close 2", "close 3", "close 0"]


@pytest.mark.parametrize("divisor", [2, 3, 4, 2.5])
@pytest.mark.parametrize("order", range(5))
def test_with_equal_metrics_each_rung_promotes_its_share(divisor: float, order: int) -> None:
    settings = config(
        "async_halving",
        num_rungs=4,
        divisor=divisor,
        max_trials=50,
        max_length=1000,
        max_concurrent_trials=0,
    )
    workers = random.Random(order).randint(1, 20)
    result = simulate(settings, metric=lambda *_: 1.0, workers=workers)
    reached = Counter(len(trial.lengths) for trial in result.trials)
    at_rung = [sum(count for n, count in reached.items() if n > i) for i in range(4)]
    assert at_rung[0] == 50
    for below, above in pairwise(at_rung):
        assert above == int(below / divisor)


def test_the_number_at_work_never_grows() -> None:
    """Each result leads to at most one more piece of work."""
    settings = config("async_halving", num_rungs=3, max_trials=60, max_length=90, divisor=3)
    busy: set[str] = set()
    most = 0

    def watch(_: Searcher, event: Any, operations: list[Operation]) -> None:
        nonlocal most
        if isinstance(event, ValidationCompleted | TrialExitedEarly):
            busy.discard(event.request_id)
        busy.update(op.request_id for op in operations if isinstance(op, ValidateAfter))
        most = max(most, len(busy))

    chance = random.Random(1)
    reasons = [ExitReason.ERRORED, ExitReason.INVALID_HP]
    result = simulate(
        settings,
        metric=lambda *_: chance.choice(reasons) if chance.random() < 0.2 else chance.random(),
        observe=watch,
    )
    assert result.end == "completed"
    assert most == 16
    valid = [trial for trial in result.trials if trial.exited != "INVALID_HP"]
    assert len(valid) == 60


def test_plain_halving_without_a_cap() -> None:
    def started(**fields: Any) -> int:
        return len(promotion(max_concurrent_trials=0, **fields).ids)

    assert started(max_trials=50, num_rungs=3, divisor=3) == 9
    assert started(max_trials=5, num_rungs=3, divisor=3) == 5
    assert started(max_trials=5, num_rungs=1) == 1


# Stopping, with max_length


def test_stopping_of_a_whole_search() -> None:
    bench = stopping(max_trials=3)
    assert bench.first == ["new 0", "0 to 1", "new 1", "1 to 1"]
    assert bench.validated(0, 0.3, 1) == ["0 to 2"]  # the first goes on with any value
    assert bench.validated(1, 0.5, 1) == ["close 1", "new 2", "2 to 1"]
    assert bench.closed(1) == []
    assert bench.validated(2, 0.1, 1) == ["2 to 2"]
    assert bench.validated(0, 0.3, 2) == ["0 to 4"]
    assert bench.validated(2, 0.4, 2) == ["close 2"]
    assert bench.validated(0, 0.3, 4) == ["close 0"]
    assert bench.closed(2) == []
    assert bench.closed(0) == ["end 00"]


def test_stopping_lets_equals_go_on() -> None:
    settings = config("async_halving", num_rungs=3, stop_once=True, max_trials=20, max_length=16)
    result = simulate(settings, metric=lambda *_: 0.5)
    assert {tuple(trial.lengths) for trial in result.trials} == {(1, 4, 16)}


def test_stopping_and_exits() -> None:
    bench = stopping(max_trials=3)
    assert bench.exited(0, "INVALID_HP") == ["close 0", "new 2", "2 to 1"]
    assert bench.exited(1, "ERRORED") == ["new 3", "3 to 1"]
    assert bench.closed(0) == []
    assert bench.closed(1) == []
    assert bench.validated(2, 0.5, 1) == ["2 to 2"]
    assert bench.exited(2, "USER_REQUESTED_STOP") == []  # all three have been started
    assert bench.closed(2) == []
    assert bench.exited(3, "USER_CANCELED") == []
    assert bench.closed(3) == ["end 00"]


# Stopping by reports


def test_reports_of_a_whole_search() -> None:
    bench = reports(max_trials=3)
    assert bench.searcher.form == "reports"
    assert bench.first == ["new 0", "new 1"]
    assert bench.reported(0, 0.3, 0.5) == []  # before the first rung
    assert bench.reported(0, 0.3, 1) == []
    assert bench.reported(1, 0.5, 1) == ["stop 1", "new 2"]
    assert bench.reported(1, 0.1, 2) == []  # still on its way out
    assert bench.closed(1) == []
    assert bench.reported(2, 0.2, 3) == []  # counts for rungs 1 and 2
    assert bench.reported(0, 0.9, 3) == ["stop 0"]  # behind trial 2 at rung 2
    assert bench.reported(2, 0.2, 4) == ["stop 2"]  # the top
    assert bench.closed(0) == []
    assert bench.closed(2) == ["end 00"]


def test_one_report_may_reach_the_top() -> None:
    bench = reports(max_trials=1)
    assert bench.reported(0, 0.3, 100) == ["stop 0"]
    assert bench.closed(0) == ["end 00"]


def test_a_trial_that_ends_below_its_rung_makes_room() -> None:
    bench = reports(max_trials=3, max_concurrent_trials=1)
    assert bench.closed(0) == ["new 1"]
    assert bench.exited(1, "ERRORED") == ["new 2"]
    assert bench.closed(1) == []
    assert bench.reported(2, 0.5, 4) == ["stop 2"]
    assert bench.closed(2) == ["end 00"]


def test_an_invalid_trial_in_reports() -> None:
    bench = reports(max_trials=1)
    bench.reported(0, 0.1, 2)
    assert bench.exited(0, "INVALID_HP") == ["stop 0", "new 1"]
    assert bench.closed(0) == []
    assert bench.searcher.progress() == 0


def test_a_report_without_the_time_metric() -> None:
    with pytest.raises(SearcherError, match="without the searcher's time metric 'batches'"):
        reports().reported(0, 0.5, None)


# Searches as a whole


def test_adaptive_trials_belong_to_their_brackets() -> None:
    settings = config("adaptive_asha", max_trials=16, max_length=1000)
    result = simulate(settings, metric=lambda hparams, length, trial: hparams["lr"])
    firsts = Counter(trial.lengths[0] for trial in result.trials)
    assert firsts == {62: 12, 250: 4}
    assert result.end == "completed"
    assert sum(trial.lengths[-1] == 1000 for trial in result.trials) >= 1


def test_the_best_trial_of_a_bracket_reaches_the_top() -> None:
    for fields in ({}, {"stop_once": True}):
        settings = config(
            "adaptive_asha", max_trials=64, max_length=64, mode="aggressive", **fields
        )
        result = simulate(settings, metric=lambda hparams, length, trial: hparams["lr"], workers=1)
        best = min(result.trials, key=lambda trial: trial.hparams["lr"])
        assert best.lengths == [1, 4, 16, 64]


def test_explicit_brackets_are_sorted() -> None:
    settings = config("adaptive_asha", max_trials=20, max_length=16, bracket_rungs=[1, 3])
    result = simulate(settings)
    assert {trial.lengths[0] for trial in result.trials} == {1, 16}
    assert result.trials[0].lengths[0] == 1


def test_an_always_invalid_space_ends_in_error() -> None:
    for name in ("async_halving", "adaptive_asha"):
        settings = config(name, num_rungs=2, max_trials=5, max_length=16)
        result = simulate(settings, metric=lambda *_: ExitReason.INVALID_HP)
        assert result.end == "errored"
        assert "in a row called their hyperparameters invalid" in str(result.error)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("adaptive_asha", {}, "requires `max_time` and `time_metric`"),
        ("async_halving", {"num_rungs": 2, "max_time": 5}, "requires `max_time` and"),
        ("async_halving", {"max_length": 5}, r"searcher\.num_rungs: the async_halving"),
        ("adaptive_asha", {"max_length": 5, "divisor": 1}, r"searcher\.divisor: .* above 1"),
        ("adaptive_asha", {"max_length": 5, "divisor": math.inf}, r"searcher\.divisor"),
        ("adaptive_asha", {"max_length": 5, "mode": "agressive"}, "did you mean 'aggressive'"),
        ("adaptive_asha", {"max_length": 5, "max_rungs": 0}, r"searcher\.max_rungs"),
        ("adaptive_asha", {"max_length": 5, "bracket_rungs": [2, 0]}, r"bracket_rungs\[1\]"),
        ("adaptive_asha", {"max_length": 5, "bracket_rungs": [5000]}, "5000 rungs are too many"),
        ("async_halving", {"max_time": 0, "time_metric": "b", "num_rungs": 1}, r"max_time: .* 1"),
    ],
)
def test_refusals(name: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SearcherError, match=message):
        create_searcher(config(name, **{"max_trials": 4, **fields}))
