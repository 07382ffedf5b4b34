"""Model-based search: the model's training data, and that it finds better trials than random search."""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from typing import Any

import pytest
from search_configs import config

from determined.common import installation
from determined_searchers import (
    Create,
    ExitReason,
    MetricMissing,
    Searcher,
    SearcherError,
    SimulationResult,
    TrialExitedEarly,
    ValidationCompleted,
    create_searcher,
    restore_searcher,
    simulate,
)
from determined_searchers.testing import SearchMethodContract, store
from determined_searchers.tpe import TPE
from determined_searchers.tpe_model import TreeParzenModel

pytestmark = pytest.mark.timeout(120)

RUNGS = {"max_trials": 8, "divisor": 3, "max_concurrent_trials": 2, "n_startup_trials": 3}
SPACE = {
    "lr": {"type": "log", "base": 10, "minval": -5, "maxval": 0},
    "group": {
        "width": {"type": "int", "minval": 1, "maxval": 64},
        "kind": {"type": "categorical", "vals": ["a", {"b": 1}, [1], None]},
        "drop": {"type": "double", "minval": 0, "maxval": 1},
    },
    "fixed": 3,
    "only": {"type": "categorical", "vals": ["one"]},
}
POINT = {
    "lr": 0.1,
    "group": {"width": 1, "kind": "a", "drop": 0.0},
    "fixed": 3,
    "only": "one",
}
LENGTH = {"max_length": {"epochs": 9}}


class TestByPromotion(SearchMethodContract):
    config = config("tpe", space=SPACE, **RUNGS, **LENGTH)


class TestByStopping(SearchMethodContract):
    config = config("tpe", space=SPACE, stop_once=True, smaller_is_better=False, **RUNGS, **LENGTH)


class TestByReports(SearchMethodContract):
    config = config("tpe", space=SPACE, max_time=9, time_metric="epochs", **RUNGS)


class TestEachHyperparameterOnItsOwn(SearchMethodContract):
    config = config("tpe", space=SPACE, multivariate=False, mode="aggressive", **RUNGS, **LENGTH)


class TestNothingToChoose(SearchMethodContract):
    config = config("tpe", space={"batch": 32}, **RUNGS, **LENGTH)


def model_of(searcher: Searcher) -> TreeParzenModel:
    assert isinstance(searcher._method, TPE)
    return searcher._method.model


def distance(hparams: dict[str, Any]) -> float:
    """Best at lr 0.01, width 40, kind [1], drop 0.2."""
    group = hparams["group"]
    return (
        abs(math.log10(hparams["lr"]) + 2) / 3
        + abs(group["width"] - 40) / 64
        + (group["kind"] != [1])
        + abs(group["drop"] - 0.2)
    )


def search(name: str, seed: int, **fields: Any) -> SimulationResult:
    settings = config(
        name, space=SPACE, max_trials=60, max_length=9, max_concurrent_trials=4, **fields
    )
    return simulate(settings, lambda hparams, *_: distance(hparams), seed=seed, workers=4)


def test_it_finds_better_trials_than_chance() -> None:
    def late_mean(result: SimulationResult) -> float:
        return statistics.mean(distance(trial.hparams) for trial in result.trials[-20:])

    seeds = range(5)
    by_model = [late_mean(search("tpe", seed)) for seed in seeds]
    by_chance = [late_mean(search("adaptive_asha", seed)) for seed in seeds]
    assert statistics.mean(by_model) < 0.6 * statistics.mean(by_chance)


def test_values_are_of_the_space() -> None:
    for trial in search("tpe", 1).trials:
        assert set(trial.hparams) == set(SPACE)
        group = trial.hparams["group"]
        assert 1e-5 <= trial.hparams["lr"] <= 1
        assert isinstance(group["width"], int)
        assert 1 <= group["width"] <= 64
        assert group["kind"] in ["a", {"b": 1}, [1], None]
        assert (trial.hparams["fixed"], trial.hparams["only"]) == (3, "one")


def test_it_starts_as_adaptive_asha_would() -> None:
    first = [trial.hparams for trial in search("tpe", 3).trials[:4]]
    assert first == [trial.hparams for trial in search("adaptive_asha", 3).trials[:4]]


def started(**fields: Any) -> tuple[Searcher, list[str]]:
    """A search by promotion in one bracket, and its first trials."""
    settings = {"max_trials": 40, "max_concurrent_trials": 12, "mode": "aggressive", **fields}
    searcher = create_searcher(config("tpe", space=SPACE, max_length=9, divisor=3, **settings))
    operations = searcher.initial_operations()
    return searcher, [op.request_id for op in operations if isinstance(op, Create)]


def test_it_goes_by_the_longest_length_with_enough_trials() -> None:
    searcher, trials = started(n_startup_trials=3)
    model = model_of(searcher)
    assert model.lengths == [1, 3, 9]
    for place, trial in enumerate(trials):
        assert model._level() == (0 if place >= 3 else None)
        searcher.handle(ValidationCompleted(trial, place / 10, 1))
    for number, request_id in enumerate(trials[:6]):
        # With fewer than twice this number, the best tenth would be one trial.
        assert model._level() == 0, number
        model.measured(request_id, 3, 0.5)
    assert model._level() == 1


def test_reports_between_rungs_are_not_taken_for_another_length() -> None:
    settings = config("tpe", space=SPACE, max_trials=8, max_time=9, time_metric="t", divisor=3)
    model = model_of(create_searcher(settings))
    model.created("a", POINT)
    for time_, metric in ((0.5, 5.0), (1, 1.0), (2, 2.0), (4.5, 4.0), (5, 5.0)):
        model.measured("a", time_, metric)
    assert model.trials["a"].metrics == {0: 1.0, 1: 4.0}


def test_errored_members_are_worst_and_invalid_ones_are_forgotten() -> None:
    searcher, trials = started(n_startup_trials=3)
    for place, trial in enumerate(trials[:5]):
        searcher.handle(ValidationCompleted(trial, place / 10, 1))
    searcher.handle(TrialExitedEarly(trials[0], ExitReason.ERRORED))
    searcher.handle(TrialExitedEarly(trials[1], ExitReason.INVALID_HP))
    model = model_of(searcher)
    ranks = dict(zip(model.trials, (rank for _, rank in model._shown(0)), strict=True))
    assert ranks[trials[0]] == 3
    assert [ranks[trial] for trial in trials[2:5]] == [0, 1, 2]
    assert trials[1] not in ranks
    waiting = {trial for trial, rank in ranks.items() if rank is None}
    assert waiting == set(ranks) - {trials[0], *trials[2:5]}


def test_the_sampler_sees_the_best_and_a_share_of_the_others() -> None:
    searcher, _ = started()
    model = model_of(searcher)
    model.trials.clear()
    for number in range(1000):
        model.created(str(number), {**POINT, "group": {**POINT["group"], "drop": number / 1000}})
        model.measured(str(number), 1, float(number * 7919 % 1000))
    drop = [leaf.path for leaf in model.coordinates.axes].index("hyperparameters.group.drop")
    metrics = {trial.point[drop]: trial.metrics[0] for trial in model.trials.values()}
    shown = [(metrics[point[drop]], rank) for point, rank in model._shown(0)]
    assert len(shown) == 250
    by_rank = [metric for metric, _ in sorted(shown, key=lambda pair: pair[1] or 0)]
    assert by_rank[:25] == [float(metric) for metric in range(25)]
    assert by_rank == sorted(by_rank)
    assert by_rank[-1] > 990


def test_a_loaded_history_gives_the_same_suggestion() -> None:
    searcher, trials = started()
    for place, trial in enumerate(trials[:-1]):
        searcher.handle(ValidationCompleted(trial, math.sin(place), 1))
    settings = config(
        "tpe",
        space=SPACE,
        max_length=9,
        divisor=3,
        max_trials=40,
        max_concurrent_trials=12,
        mode="aggressive",
    )
    restored = restore_searcher(settings, store(searcher.snapshot()))
    event = ValidationCompleted(trials[-1], 1e9, 1)
    found = searcher.handle(event)
    assert any(isinstance(operation, Create) for operation in found)
    assert restored.handle(event) == found


def test_a_suggestion_takes_milliseconds() -> None:
    searcher, _ = started()
    model = model_of(searcher)
    space = model._context.space
    for number in range(1000):
        hparams = space.sample(model._context.stream)
        model.created(str(number), hparams)
        model.measured(str(number), 9 if number % 9 == 0 else 1, distance(hparams))
    model.suggest()  # imports Optuna
    begin = time.process_time()
    for _ in range(10):
        model.suggest()
    assert (time.process_time() - begin) / 10 < 0.05


def test_without_optuna_it_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SearcherError) as caught:
        create_searcher(config("tpe", max_trials=2, **LENGTH))
    assert str(caught.value).startswith("searcher.name: tpe needs Optuna")
    assert installation.command("tpe") in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, r"^searcher: the 'tpe' searcher requires `max_time` and `time_metric`"),
        ({"max_time": 3}, r"requires `max_time` and `time_metric`"),
        ({"n_startup_trials": 0, **LENGTH}, r"^searcher\.n_startup_trials: .*, found 0"),
        ({"mode": "fast", **LENGTH}, r"^searcher\.mode: "),
        ({"max_length": {"epochs": 0}}, r"^searcher\.max_length: "),
        ({"bracket_rungs": [2, 0], **LENGTH}, r"^searcher\.bracket_rungs\.1: "),
    ],
)
def test_wrong_configurations(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SearcherError, match=message):
        create_searcher(config("tpe", max_trials=4, **fields))


def test_a_search_by_reports_fails_without_the_metric() -> None:
    searcher = create_searcher(TestByReports.config)
    (trial, *_) = [op.request_id for op in searcher.initial_operations() if isinstance(op, Create)]
    with pytest.raises(SearcherError, match="no such metric; the tpe searcher stops trials by"):
        searcher.handle(MetricMissing(trial, "no such metric"))
