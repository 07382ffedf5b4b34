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
def test_workers_limit_concurrency_but_not_the_outcome(workers: int | None) -> None:
    result = simulate(config("random", max_trials=10, max_length=5), workers=workers)
    assert len(result.trials) == 10
    free = simulate(config("random", max_trials=10, max_length=5))
    assert [(t.request_id, t.hparams) for t in result.trials] == [
        (t.request_id, t.hparams) for t in free.trials
    ]


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


def test_a_refused_configuration_raises() -> None:
    with pytest.raises(SearcherError, match="max_trials"):
        simulate(config("random"))


def test_an_exception_ends_the_search() -> None:
    result = simulate(config("random", max_trials=1, max_length=1), metric=lambda *_: "bad")  # type: ignore[arg-type]
    assert result.end == "errored"
    assert "must be a number" in str(result.error)


# The virtual clock


def test_workers_take_trials_first_come_first_served() -> None:
    result = simulate(config("random", max_trials=5, max_length=4), workers=2, cost=2.5)
    assert [trial.created for trial in result.trials] == [0.0] * 5
    assert [trial.started for trial in result.trials] == [0.0, 0.0, 10.0, 10.0, 20.0]
    assert [trial.validated for trial in result.trials] == [[10.0], [10.0], [20.0], [20.0], [30.0]]
    assert [trial.closed for trial in result.trials] == [10.0, 10.0, 20.0, 20.0, 30.0]
    assert (result.duration, result.busy, result.total_units) == (30.0, 50.0, 20)
    assert (result.workers, result.peak_trials) == (2, 2)
    assert result.utilisation == pytest.approx(50 / 60)


def test_cost_by_hyperparameters_and_length() -> None:
    calls: list[tuple[int, int]] = []

    def cost(hparams: dict[str, Any], before: int, to: int) -> float:
        calls.append((before, to))
        return 10.0 if hparams["net"]["act"] == "relu" else 1.0

    settings = config("async_halving", num_rungs=2, max_trials=1, max_length=4, stop_once=True)
    result = simulate(settings, cost=cost)
    [trial] = result.trials
    assert calls == [(0, 1), (1, 4)]
    assert result.duration == sum(
        10.0 if trial.hparams["net"]["act"] == "relu" else 1.0 for _ in calls
    )


def test_a_paused_trial_holds_no_worker_and_pays_to_resume() -> None:
    """Two trials to 1; the better one to 4, after a pause while the other trained."""
    settings = config("async_halving", num_rungs=2, max_trials=2, max_length=4, divisor=2)
    result = simulate(
        settings, metric=lambda h, length, trial: float(trial), workers=1, resume_cost=0.5
    )
    first, second = result.trials
    assert (first.lengths, second.lengths) == ([2, 4], [2])
    assert (first.validated, first.promoted) == ([2.0, 6.5], [4.0])
    assert (second.started, second.validated) == (2.0, [4.0])
    assert (first.busy, second.busy) == (4.5, 2.0)
    assert (result.duration, result.utilisation, result.total_units) == (6.5, 1.0, 6)


def test_going_on_at_once_costs_nothing() -> None:
    settings = config("async_halving", num_rungs=3, max_trials=1, max_length=4, stop_once=True)
    result = simulate(settings, resume_cost=100.0)
    assert result.duration == 4.0


def test_a_stopped_trial_gives_its_worker_back() -> None:
    settings = config(
        "async_halving", num_rungs=2, max_trials=3, max_time=4, time_metric="epochs", divisor=2
    )
    result = simulate(settings, metric=lambda h, time, trial: float(trial), workers=1)
    assert [trial.lengths for trial in result.trials] == [[1, 2, 3, 4], [1, 2], [1, 2]]
    assert [trial.closed for trial in result.trials] == [4.0, 6.0, 8.0]
    assert result.utilisation == 1.0


def test_the_best_over_time() -> None:
    metrics = [3.0, None, float("nan"), 5.0, 2.0]
    for sign in (1, -1):
        settings = config("random", max_trials=5, max_length=1, smaller_is_better=sign > 0)
        result = simulate(
            settings,
            metric=lambda h, n, trial, sign=sign: metrics[trial] and sign * metrics[trial],  # type: ignore[misc]
            workers=1,
        )
        best = result.best_over_time()
        assert [(time, sign * metric) for time, metric, _ in best] == [(1.0, 3.0), (5.0, 2.0)]
        assert best[-1][2] is result.trials[4]


def test_trials_that_end_by_themselves_have_no_lengths() -> None:
    result = simulate(config("random", max_trials=3), workers=1)
    assert result.total_units is None
    assert [trial.lengths for trial in result.trials] == [[]] * 3
    assert [len(trial.metrics) for trial in result.trials] == [1, 1, 1]
    assert result.duration == 3.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be at least 1, not 0"),
        ({"cost": -1}, "cost must be a number of seconds"),
        ({"cost": lambda *_: float("nan")}, "cost must be a number of seconds"),
        ({"resume_cost": -0.5}, "resume_cost must be"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(config("random", max_trials=2, max_length=1), **options)


def test_a_method_that_forgets_its_trials_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "determined_searchers.asha_promotion.PromotingHalving._close_out", lambda self: []
    )
    with pytest.raises(RuntimeError, match="did not end: 4 trials are paused"):
        simulate(config("async_halving", num_rungs=2, max_trials=5, max_length=4))


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
