"""single, random and grid, event by event, in both forms."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from search_configs import SPACE, config

from determined_searchers import (
    Close,
    Create,
    ExitReason,
    Operation,
    Searcher,
    SearcherError,
    Shutdown,
    TrialClosed,
    TrialCreated,
    TrialExitedEarly,
    TrialProgress,
    TrialReported,
    ValidateAfter,
    ValidationCompleted,
    create_searcher,
    restore_searcher,
    simulate,
)
from determined_searchers.space import Space
from determined_searchers.stream import RandomStream

LENGTH = {"max_length": {"batches": 100}}
INVALID = [ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP]


def ids(operations: list[Operation]) -> list[str]:
    return [op.request_id for op in operations if isinstance(op, Create)]


def leave(searcher: Searcher, trial: str, reason: ExitReason) -> list[Operation]:
    return [
        *searcher.handle(TrialExitedEarly(trial, reason)),
        *searcher.handle(TrialClosed(trial)),
    ]


# The first operations


def test_random_starts_as_many_as_may_run_at_once() -> None:
    searcher = create_searcher(config("random", max_trials=9, max_concurrent_trials=3, **LENGTH))
    stream = RandomStream(1)
    space = Space(SPACE)
    expected: list[Operation] = []
    for _ in range(3):
        hparams = space.sample(stream)
        request_id = stream.request_id()
        expected += [
            Create(request_id, hparams, stream.trial_seed()),
            ValidateAfter(request_id, 100),
            Close(request_id),
        ]
    assert searcher.initial_operations() == expected
    assert searcher.form == "operations"


def test_known_random_search() -> None:
    """As NumPy has it: uniform, randint(0, 4), bytes(16), randint(0, 2**31) of RandomState(42)."""
    space = {
        "b": {"type": "int", "minval": 1, "maxval": 4},
        "a": {"type": "double", "minval": 0, "maxval": 1},
    }
    searcher = create_searcher(config("random", seed=42, space=space, max_trials=2))
    assert searcher.initial_operations() == [
        Create(
            "0e95f52e-6af4-43bb-87d4-99c7bcae4199", {"a": 0.3745401188473625, "b": 1}, 415968276
        ),
        Create(
            "d6f49719-4a91-4e0e-8a55-917557b8bddd", {"a": 0.15601864044243652, "b": 3}, 1433267572
        ),
    ]


def test_random_makes_valid_distinct_uuids() -> None:
    trials = simulate(config("random", max_trials=50)).trials
    assert len({uuid.UUID(trial.request_id) for trial in trials}) == 50
    assert all(uuid.UUID(trial.request_id).version == 4 for trial in trials)
    assert all(0 <= trial.seed < 2**31 for trial in trials)


@pytest.mark.parametrize(("cap", "started"), [(0, 20), (None, 16), (5, 5), (50, 20)])
def test_cap_on_concurrent_trials(cap: int | None, started: int) -> None:
    searcher = create_searcher(config("random", max_trials=20, max_concurrent_trials=cap))
    assert len(ids(searcher.initial_operations())) == started


def test_grid_starts_with_the_last_point() -> None:
    searcher = create_searcher(config("grid", max_concurrent_trials=3, **LENGTH))
    stream = RandomStream(1)
    grid = Space(SPACE).grid()
    expected: list[Operation] = []
    for index in (11, 10, 9):
        request_id = stream.request_id()  # a grid draws no hyperparameters
        expected += [
            Create(request_id, grid[index], stream.trial_seed()),
            ValidateAfter(request_id, 100),
            Close(request_id),
        ]
    assert searcher.initial_operations() == expected
    assert grid[11] == {"batch": 32, "lr": 0.1, "net": {"act": "tanh", "layers": 4}}


def test_single_is_one_sample() -> None:
    [create, *rest] = create_searcher(config("single", **LENGTH)).initial_operations()
    assert isinstance(create, Create)
    assert create.hparams == Space(SPACE).sample(RandomStream(1))
    assert rest == [ValidateAfter(create.request_id, 100), Close(create.request_id)]


@pytest.mark.parametrize("name", ["single", "random", "grid"])
def test_without_max_length_there_are_only_creates(name: str) -> None:
    searcher = create_searcher(config(name, max_trials=4))
    operations = searcher.initial_operations()
    assert operations
    assert all(isinstance(op, Create) for op in operations)
    assert searcher.form == "reports"


# To the end


@pytest.mark.parametrize("fields", [LENGTH, {}], ids=["operations", "reports"])
@pytest.mark.parametrize(("name", "trials"), [("single", 1), ("random", 9), ("grid", 12)])
def test_every_trial_runs_once(name: str, trials: int, fields: dict[str, Any]) -> None:
    result = simulate(config(name, max_trials=9, max_concurrent_trials=2, **fields))
    assert len(result.trials) == trials
    assert result.end == "completed"
    assert {tuple(trial.lengths) for trial in result.trials} == {(100,) if fields else ()}
    if name == "grid":
        grid = Space(SPACE).grid()
        assert [trial.hparams for trial in result.trials] == [grid[i] for i in reversed(range(12))]


def test_one_closed_one_started_until_all_are() -> None:
    searcher = create_searcher(config("random", max_trials=3, max_concurrent_trials=2))
    first, second = ids(searcher.initial_operations())
    [third] = ids(searcher.handle(TrialClosed(first)))
    assert searcher.handle(TrialClosed(third)) == []
    assert searcher.handle(TrialClosed(second)) == [Shutdown()]
    assert searcher.shutdown == Shutdown()


@pytest.mark.parametrize("name", ["random", "grid"])
def test_sampling_follows_the_order_of_creation_not_of_trials(name: str) -> None:
    """The order in which trials close does not change the next one."""
    one, other = (
        create_searcher(config(name, max_trials=5, max_concurrent_trials=2)) for _ in "ab"
    )
    first, second = ids(one.initial_operations())
    other.initial_operations()
    assert one.handle(TrialClosed(first)) == other.handle(TrialClosed(second))


def test_an_empty_grid_is_one_point() -> None:
    result = simulate(config("grid", space={}))
    assert [trial.hparams for trial in result.trials] == [{}]
    assert result.end == "completed"


# Exits


@pytest.mark.parametrize("reason", INVALID)
def test_random_replaces_an_invalid_sample(reason: ExitReason) -> None:
    searcher = create_searcher(config("random", max_trials=2, max_concurrent_trials=2))
    first, second = ids(searcher.initial_operations())
    assert searcher.handle(TrialExitedEarly(first, reason)) == []
    [replacement] = ids(searcher.handle(TrialClosed(first)))
    assert searcher.handle(TrialClosed(second)) == []
    assert searcher.handle(TrialClosed(replacement)) == [Shutdown()]


def test_max_trials_counts_valid_samples_only() -> None:
    def every_third_invalid(hparams: Any, length: int, trial: int) -> Any:
        return ExitReason.INVALID_HP if trial % 3 == 2 else 0.5

    for cap in (0, 1, 4):
        result = simulate(
            config("random", max_trials=20, max_concurrent_trials=cap, **LENGTH),
            metric=every_third_invalid,
        )
        assert sum(trial.exited is None for trial in result.trials) == 20
        assert result.end == "completed"


def test_an_invalid_exit_and_another_close_between_make_one_replacement() -> None:
    searcher = create_searcher(config("random", max_trials=4, max_concurrent_trials=2))
    first, second = ids(searcher.initial_operations())
    searcher.handle(TrialExitedEarly(first, ExitReason.INVALID_HP))
    [third] = ids(searcher.handle(TrialClosed(second)))
    [fourth] = ids(searcher.handle(TrialClosed(first)))
    [fifth] = ids(searcher.handle(TrialClosed(third)))
    assert searcher.handle(TrialClosed(fourth)) == []
    assert searcher.handle(TrialClosed(fifth)) == [Shutdown()]


@pytest.mark.parametrize(
    "reason", [ExitReason.ERRORED, ExitReason.USER_CANCELED, ExitReason.USER_REQUESTED_STOP]
)
def test_random_counts_other_exits_as_trials(reason: ExitReason) -> None:
    searcher = create_searcher(config("random", max_trials=2, max_concurrent_trials=1))
    [first] = ids(searcher.initial_operations())
    [second] = ids(leave(searcher, first, reason))
    assert searcher.handle(TrialClosed(second)) == [Shutdown()]


@pytest.mark.parametrize("reason", list(ExitReason))
def test_grid_never_replaces(reason: ExitReason) -> None:
    result = simulate(config("grid", **LENGTH), metric=lambda h, n, trial: reason if trial else 1)
    assert len(result.trials) == 12
    assert result.end == "completed"


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        (ExitReason.INVALID_HP, Shutdown()),
        (ExitReason.INIT_INVALID_HP, Shutdown()),
        (ExitReason.USER_REQUESTED_STOP, Shutdown()),
        (ExitReason.USER_CANCELED, Shutdown(cancel=True)),
        (ExitReason.ERRORED, Shutdown(failure=True)),
    ],
)
def test_single_ends_with_its_trial(reason: ExitReason, end: Shutdown) -> None:
    searcher = create_searcher(config("single"))
    [trial] = ids(searcher.initial_operations())
    assert leave(searcher, trial, reason) == [end]


@pytest.mark.parametrize(
    ("reasons", "end"),
    [
        (["ERRORED"] * 3, "errored"),
        (["ERRORED", "ERRORED", None], "completed"),
        (["ERRORED", "ERRORED", "USER_CANCELED"], "completed"),
        (["USER_CANCELED"] * 3, "canceled"),
        (["USER_CANCELED", "USER_CANCELED", "USER_REQUESTED_STOP"], "completed"),
    ],
)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_search_errors_only_if_every_trial_did(
    reasons: list[Any], end: str, order: tuple[int, ...]
) -> None:
    def metric(hparams: Any, length: int, trial: int) -> Any:
        reason = reasons[order[trial]]
        return ExitReason(reason) if reason else 0.5

    assert simulate(config("random", max_trials=3), metric=metric).end == end


def test_a_space_that_is_always_invalid_ends_in_error() -> None:
    result = simulate(
        config("random", max_trials=3, max_concurrent_trials=2),
        metric=lambda *_: ExitReason.INVALID_HP,
    )
    assert result.end == "errored"
    assert result.error is not None
    assert "30 trials in a row called their hyperparameters invalid" in result.error
    assert len(result.trials) == 31


@pytest.mark.parametrize("rescue", ["report", "validation", "close"])
def test_a_valid_sample_starts_the_count_anew(rescue: str) -> None:
    fields = LENGTH if rescue == "validation" else {}
    settings = config("random", max_trials=2, max_concurrent_trials=1, **fields)
    searcher = create_searcher(settings)
    [trial] = ids(searcher.initial_operations())
    for _ in range(19):
        [trial] = ids(leave(searcher, trial, ExitReason.INVALID_HP))
    searcher = restore_searcher(settings, searcher.snapshot())
    if rescue == "report":
        searcher.handle(TrialReported(trial, 1, 0.5))
    elif rescue == "validation":
        searcher.handle(ValidationCompleted(trial, 0.5, 100))
    else:
        [trial] = ids(searcher.handle(TrialClosed(trial)))
    for _ in range(19):
        [trial] = ids(leave(searcher, trial, ExitReason.INVALID_HP))
    with pytest.raises(SearcherError, match="20 trials in a row"):
        searcher.handle(TrialExitedEarly(trial, ExitReason.INVALID_HP))


# Progress


def test_random_progress_in_lengths() -> None:
    searcher = create_searcher(config("random", max_trials=4, max_concurrent_trials=2, **LENGTH))
    first, second = ids(searcher.initial_operations())
    assert searcher.progress() == 0
    searcher.handle(TrialProgress(first, 50))
    searcher.handle(TrialProgress(second, 20))
    assert searcher.progress() == pytest.approx(0.7 / 4)
    searcher.handle(TrialProgress(second, 400))
    assert searcher.progress() == pytest.approx(1.5 / 4)
    searcher.handle(TrialClosed(first))
    assert searcher.progress() == pytest.approx(2 / 4)
    searcher.handle(TrialExitedEarly(second, ExitReason.INVALID_HP))
    assert searcher.progress() == pytest.approx(1 / 4)
    searcher.handle(TrialClosed(second))
    assert searcher.progress() == pytest.approx(1 / 4)


def test_progress_of_reports_is_a_fraction_of_all_trials() -> None:
    searcher = create_searcher(config("grid", max_concurrent_trials=2))
    first, second = ids(searcher.initial_operations())
    searcher.handle(TrialProgress(first, 0.5))
    searcher.handle(TrialProgress(second, float("nan")))
    assert searcher.progress() == pytest.approx(0.5 / 12)
    leave(searcher, second, ExitReason.INVALID_HP)
    assert searcher.progress() == pytest.approx(1.5 / 12)


def test_grid_progress_survives_a_restart() -> None:
    settings = config("grid", max_concurrent_trials=2)
    searcher = create_searcher(settings)
    first, _ = ids(searcher.initial_operations())
    searcher.handle(TrialClosed(first))
    assert restore_searcher(settings, searcher.snapshot()).progress() == pytest.approx(1 / 12)


def test_progress_only_rises_and_is_never_above_one() -> None:
    searcher = create_searcher(config("single", **LENGTH))
    [trial] = ids(searcher.initial_operations())
    searcher.handle(TrialCreated(trial))
    searcher.handle(TrialProgress(trial, 80))
    searcher.handle(TrialProgress(trial, 10))
    assert searcher.progress() == pytest.approx(0.8)
    searcher.handle(TrialProgress(trial, 1e9))
    assert searcher.progress() == 1
