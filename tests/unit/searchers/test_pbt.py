"""Population based training: the replaced trials, their successors and hyperparameters."""

from __future__ import annotations

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
    SimulationResult,
    TrialClosed,
    TrialExitedEarly,
    ValidateAfter,
    ValidationCompleted,
    create_searcher,
    simulate,
)
from determined_searchers.coordinates import Coordinates
from determined_searchers.explore import Explorer, perturb
from determined_searchers.space import Space
from determined_searchers.stream import RandomStream
from determined_searchers.testing import SearchMethodContract

ROUNDS = {"population_size": 4, "num_rounds": 3, "max_length": {"epochs": 9}}
PBT = config("pbt", **ROUNDS)


class TestContract(SearchMethodContract):
    config = PBT


class TestContractOfALargePopulation(SearchMethodContract):
    config = config(
        "pbt",
        population_size=11,
        num_rounds=4,
        max_length=10,
        truncate_fraction=0.5,
        smaller_is_better=False,
    )


class TestContractWithoutReplacement(SearchMethodContract):
    config = config("pbt", truncate_fraction=0, **ROUNDS)


class TestContractOverNothing(SearchMethodContract):
    config = config("pbt", space={"batch": 32}, **ROUNDS)


def start(fields: dict[str, Any] | None = None) -> tuple[Searcher, list[str]]:
    """A search and the request ids of its first population."""
    searcher = create_searcher(fields or PBT)
    operations = searcher.initial_operations()
    return searcher, [op.request_id for op in operations if isinstance(op, Create)]


def report(searcher: Searcher, length: int, metrics: dict[str, float]) -> list[Operation]:
    """All operations that follow from the reports of a round."""
    return [
        op
        for trial, metric in metrics.items()
        for op in searcher.handle(ValidationCompleted(trial, metric, length))
    ]


def test_a_round_ends_when_the_last_member_has_reported() -> None:
    searcher, trials = start()
    early = dict(zip(trials[:3], (0.1, 0.9, 0.2), strict=True))
    assert report(searcher, 3, early) == []
    close, *rest = report(searcher, 3, {trials[3]: 0.3})
    assert close == Close(trials[1])
    (create,) = (op for op in rest if isinstance(op, Create))
    assert create.source == trials[0]
    others = [trial for trial in trials if trial != trials[1]]
    assert {op for op in rest if isinstance(op, ValidateAfter)} == {
        ValidateAfter(trial, 6) for trial in [*others, create.request_id]
    }


def test_the_last_round_closes_everybody() -> None:
    searcher, trials = start({**PBT, "searcher": {**PBT["searcher"], "truncate_fraction": 0}})
    for length in (3, 6):
        going_on = report(searcher, length, dict.fromkeys(trials, 0.5))
        assert going_on == [ValidateAfter(trial, length + 3) for trial in trials]
    assert report(searcher, 9, dict.fromkeys(trials, 0.5)) == [Close(trial) for trial in trials]
    assert searcher.progress() == 1.0


def test_the_number_of_trials_is_the_population_and_its_replacements() -> None:
    result = simulate(PBT, seed=5)
    assert len(result.trials) == 4 + 2 * 1
    lengths = [length for trial in result.trials for length in trial.lengths]
    assert {length: lengths.count(length) for length in (3, 6, 9)} == {3: 4, 6: 4, 9: 4}


def test_lengths_are_cut_evenly() -> None:
    result = simulate(config("pbt", population_size=2, num_rounds=3, max_length=10), seed=1)
    assert {length for trial in result.trials for length in trial.lengths} == {3, 6, 10}


def test_an_errored_member_is_replaced_when_the_round_ends() -> None:
    searcher, trials = start()
    assert searcher.handle(TrialExitedEarly(trials[0], ExitReason.ERRORED)) == []
    assert searcher.handle(TrialClosed(trials[0])) == []
    operations = report(searcher, 3, dict(zip(trials[1:], (0.3, 0.2, 0.9), strict=True)))
    (create,) = (op for op in operations if isinstance(op, Create))
    assert create.source == trials[2]
    assert not any(isinstance(op, Close) for op in operations)  # its place was the one to fill


def test_an_error_may_end_the_round() -> None:
    searcher, trials = start()
    assert report(searcher, 3, dict.fromkeys(trials[1:], 0.5)) == []
    operations = searcher.handle(TrialExitedEarly(trials[0], ExitReason.ERRORED))
    assert sum(isinstance(op, Create) for op in operations) == 1


def test_an_invalid_sample_is_replaced_at_once_by_another_sample() -> None:
    searcher, trials = start()
    create, then = searcher.handle(TrialExitedEarly(trials[0], ExitReason.INVALID_HP))
    assert isinstance(create, Create)
    assert create.source is None
    assert then == ValidateAfter(create.request_id, 3)


def test_an_invalid_copy_is_replaced_at_once_by_another_copy() -> None:
    searcher, trials = start()
    operations = report(searcher, 3, dict(zip(trials, (0.1, 0.9, 0.2, 0.3), strict=True)))
    (copy,) = (op for op in operations if isinstance(op, Create))
    again, then = searcher.handle(TrialExitedEarly(copy.request_id, ExitReason.INIT_INVALID_HP))
    assert isinstance(again, Create)
    assert again.source == trials[0]
    assert again.hparams != copy.hparams
    assert then == ValidateAfter(again.request_id, 6)


def test_a_population_that_is_gone_ends_the_search() -> None:
    def fail_in_round_2(hparams: dict[str, Any], length: int, trial: int) -> float | ExitReason:
        return 0.5 if length == 3 else ExitReason.ERRORED

    result = simulate(PBT, fail_in_round_2, seed=1)
    assert result.end == "completed"  # the replaced trial had completed its part
    assert len(result.trials) == 5


def best_learning_rate(**fields: Any) -> SimulationResult:
    space = {"lr": {"type": "log", "base": 10, "minval": -5, "maxval": 0}}
    settings = config("pbt", space=space, population_size=8, max_length=40, **fields)
    return simulate(settings, lambda hparams, *_: abs(hparams["lr"] - 0.01), seed=3)


def test_it_comes_closer_to_the_best_hyperparameters_round_by_round() -> None:
    result = best_learning_rate(num_rounds=20)
    first = min(abs(trial.hparams["lr"] - 0.01) for trial in result.trials[:8])
    last = min(abs(trial.hparams["lr"] - 0.01) for trial in result.trials[-8:])
    assert last < first / 3


@pytest.mark.parametrize(
    ("space", "number", "factor", "expected"),
    [
        ({"type": "double", "minval": 0, "maxval": 1}, 0.5, 1.2, 0.6),
        ({"type": "double", "minval": 0, "maxval": 1}, 0.9, 1.2, 1.0),
        ({"type": "double", "minval": -1, "maxval": 1}, -0.5, 0.8, -0.4),
        ({"type": "int", "minval": 1, "maxval": 99}, 50, 1.2, 60),
        ({"type": "int", "minval": 1, "maxval": 99}, 2, 1.2, 3),
        ({"type": "int", "minval": 1, "maxval": 99}, 2, 0.8, 1),
        ({"type": "int", "minval": 1, "maxval": 99}, 1, 0.8, 1),
        ({"type": "log", "base": 10, "minval": -4, "maxval": -1}, -1.05, 1.2, -1.0),
        ({"type": "log", "base": 10, "minval": -4, "maxval": 4}, 1.0, 10, 2.0),
        ({"type": "log", "base": 0.1, "minval": -4, "maxval": 4}, 1.0, 10, 0.0),
    ],
)
def test_numbers_are_multiplied_within_their_range(
    space: dict[str, Any], number: float, factor: float, expected: float
) -> None:
    (leaf,) = Space({"x": space}).leaves()
    assert perturb(leaf, number, factor) == pytest.approx(expected)


SPACE = {
    "choice": {"type": "categorical", "vals": [1, True, "b", 1.0, {"z": 1}]},
    "group": {"size": {"type": "int", "minval": 1, "maxval": 64}, "seed": 5},
    "one": {"type": "categorical", "vals": [["only"]]},
    "rate": {"type": "log", "base": 10, "minval": -4, "maxval": 0},
}


def test_coordinates_go_there_and_back() -> None:
    coordinates = Coordinates(Space(SPACE))
    assert len(coordinates.axes) == 3
    stream = RandomStream(1)
    for _ in range(50):
        sample = Space(SPACE).sample(stream)
        again = coordinates.hparams(coordinates.of(sample))
        assert again.pop("rate") == pytest.approx(sample.pop("rate"))
        assert repr(again) == repr(sample)


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_exploring_stays_in_the_space(chance: float) -> None:
    coordinates = Coordinates(Space(SPACE))
    explorer = Explorer(coordinates, RandomStream(2), resample_probability=chance, factor=0.5)
    point = coordinates.of(Space(SPACE).sample(RandomStream(3)))
    for _ in range(200):
        found = explorer.explore(point)
        before, point = point, coordinates.of(found)
        assert 1e-4 <= found["rate"] <= 1
        assert 1 <= found["group"]["size"] <= 64
        assert (found["group"]["seed"], found["one"]) == (5, ["only"])
        if not chance:
            assert abs(point[0] - before[0]) == 1  # a neighbour in the list


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_length": None}, r"searcher\.max_length: the pbt searcher needs this field"),
        (
            {"max_time": 9, "time_metric": "epochs"},
            r"searcher\.max_length: .* max_time is not allowed",
        ),
        ({"max_length": {"epochs": 2}}, r"searcher\.num_rounds: max_length 2 cannot be cut into 3"),
        ({"population_size": 1}, r"searcher\.population_size: .* 2, found 1"),
        ({"population_size": None}, r"searcher\.population_size: Field required"),
        ({"truncate_fraction": 0.6}, r"searcher\.truncate_fraction: .* 0\.5, found 0\.6"),
        ({"perturb_factor": 1}, r"searcher\.perturb_factor"),
    ],
)
def test_wrong_configurations(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SearcherError, match=message):
        create_searcher(config("pbt", **{**ROUNDS, **fields}))
