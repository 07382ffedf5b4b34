"""simulate(): the public way to run a search without a cluster."""

from __future__ import annotations

import time
from typing import Any

import pytest
from search_configs import config

from determined_searchers import ExitReason, SearcherError, simulate


def test_result_of_a_random_search() -> None:
    result = simulate(config("random", max_trials=4, max_length={"epochs": 7}), seed=3)
    assert (result.end, result.error, len(result.trials)) == ("completed", None, 4)
    trial = result.trials[0]
    assert set(trial.hparams) == {"lr", "net", "batch"}
    assert (trial.lengths, trial.exited) == ([7], None)


def test_the_seed_given_wins_over_the_configured_one() -> None:
    settings = config("random", seed=5, max_trials=4)
    assert simulate(settings) == simulate(settings, seed=5)
    assert simulate(settings, seed=6) != simulate(settings)
    assert simulate({**settings, "reproducibility": None}, seed=5) == simulate(settings)
    assert settings["reproducibility"] == {"experiment_seed": 5}


def test_metric_gets_hyperparameters_length_and_number() -> None:
    calls: list[tuple[Any, int, int]] = []

    def metric(hparams: dict[str, Any], length: int, trial: int) -> float:
        calls.append((hparams, length, trial))
        return 0.0

    result = simulate(config("grid", max_length=5, max_concurrent_trials=1), metric=metric)
    assert calls == [(trial.hparams, 5, i) for i, trial in enumerate(result.trials)]


@pytest.mark.parametrize("workers", [None, 1, 2, 100])
def test_workers_limit_what_trains_but_not_the_outcome(workers: int | None) -> None:
    result = simulate(config("random", max_trials=10, max_length=5), workers=workers)
    assert len(result.trials) == 10
    assert result.trials == simulate(config("random", max_trials=10, max_length=5)).trials


def test_exits_are_shown() -> None:
    result = simulate(
        config("random", max_trials=2, max_length=5),
        metric=lambda hparams, length, trial: ExitReason.INVALID_HP if trial == 0 else 1.0,
    )
    assert [trial.exited for trial in result.trials] == ["INVALID_HP", None, None]
    assert [trial.lengths for trial in result.trials] == [[], [5], [5]]


def test_reports_in_time() -> None:
    settings = config("random", max_trials=2, max_time=3, time_metric="batches")
    assert [trial.lengths for trial in simulate(settings).trials] == [[1, 2, 3]] * 2
    result = simulate(settings, report_times=[2, 3])
    assert [trial.lengths for trial in result.trials] == [[2, 3]] * 2


def test_what_the_configuration_refuses_is_raised() -> None:
    with pytest.raises(SearcherError, match="max_trials"):
        simulate(config("random"))


def test_what_the_search_raises_is_its_end() -> None:
    result = simulate(config("random", max_trials=1, max_length=1), metric=lambda *_: "bad")  # type: ignore[arg-type]
    assert result.end == "errored"
    assert "must be a number" in str(result.error)


@pytest.mark.parametrize("cap", [16, 0])
def test_ten_thousand_trials_take_a_moment(cap: int) -> None:
    """CPU time, so that a busy machine does not matter; a quadratic search would take minutes."""
    settings = config("random", max_trials=10_000, max_concurrent_trials=cap, max_length=100)
    start = time.process_time()
    assert len(simulate(settings).trials) == 10_000
    assert time.process_time() - start < 5


def test_snapshots_stay_small() -> None:
    sizes: list[int] = []
    simulate(
        config("random", max_trials=300, max_length=100),
        observe=lambda searcher, *_: sizes.append(len(str(searcher.snapshot()))),
    )
    assert max(sizes) < 15_000
