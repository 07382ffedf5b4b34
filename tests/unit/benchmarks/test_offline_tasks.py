"""The offline benchmark's tasks: deterministic, with the optimum where they say it is."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.search.offline import tasks
from benchmarks.search.offline.space import COUNTING_SPACE, CURVES_SPACE, DIGITS_SPACE
from benchmarks.search.offline.tasks import MAX_EPOCHS, TASKS, Curves, Hartmann, make_task


@pytest.mark.parametrize("name", TASKS)
def test_an_outcome_depends_on_the_configuration_alone(name: str) -> None:
    task, again = make_task(name, 3), make_task(name, 3)
    configs = list(itertools.islice(task.stream(), 5))
    assert configs == list(itertools.islice(again.stream(), 5))
    outcomes = [task.outcome(config) for config in configs]
    assert outcomes == [again.outcome(config) for config in reversed(configs)][::-1]
    assert len({tuple(outcome.losses) for outcome in outcomes}) > 1


@pytest.mark.parametrize("name", [name for name in TASKS if name != "T5 digits"])
def test_another_seed_is_another_instance(name: str) -> None:
    config = next(make_task(name, 0).stream())
    assert make_task(name, 0).outcome(config) != make_task(name, 1).outcome(config)


@pytest.mark.parametrize("name", TASKS)
def test_regret_is_never_negative_and_costs_are_about_one(name: str) -> None:
    task = make_task(name, 0)
    outcomes = [task.outcome(config) for config in itertools.islice(task.stream(), 300)]
    assert all(outcome.regret >= 0 for outcome in outcomes)
    assert all(len(outcome.losses) == MAX_EPOCHS for outcome in outcomes)
    assert 0.5 < np.mean([outcome.epoch_cost for outcome in outcomes]) < 1.5


def test_the_curves_have_their_optimum_at_the_centre() -> None:
    for crossing in (False, True):
        task = Curves("curves", 7, crossing)
        config = {
            param.name: param.at(u) for param, u in zip(CURVES_SPACE, task.centre, strict=True)
        }
        outcome = task.outcome(config)
        assert outcome.regret == pytest.approx(0, abs=1e-9)
        assert outcome.losses[-1] == pytest.approx(0.05, abs=5 * Curves.NOISE)


def test_early_losses_mislead_on_the_crossing_task_only() -> None:
    def correlation(crossing: bool) -> float:
        task = Curves("curves", 0, crossing)
        outcomes = [task.outcome(config) for config in itertools.islice(task.stream(), 500)]
        good = sorted(outcomes, key=lambda outcome: outcome.regret)[:100]
        first, final = zip(*((o.losses[0], o.regret) for o in good), strict=True)
        return float(np.corrcoef(first, final)[0, 1])

    assert correlation(crossing=False) > 0.5
    assert correlation(crossing=True) < 0


def test_counting_ones_counts() -> None:
    task = make_task("T3 counting ones", 0)
    best = {param.name: 1.0 for param in COUNTING_SPACE}
    assert task.outcome(best).regret == 0
    assert task.outcome(best).losses == [0.0] * MAX_EPOCHS
    half = best | {f"share{i}": 0.5 for i in range(8)} | {"bit0": 0.0}
    outcome = task.outcome(half)
    assert outcome.regret == pytest.approx(5 / 16)
    assert outcome.losses[-1] == pytest.approx(5 / 16, abs=0.05)


def test_hartmann_at_its_published_minimum() -> None:
    best = (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)
    config = {f"x{i}": value for i, value in enumerate(best)}
    outcome = Hartmann("hartmann", 0, bias=1.0, noise=0.2).outcome(config)
    assert outcome.regret == pytest.approx(0, abs=1e-6)
    assert outcome.losses[-1] == pytest.approx(0, abs=1e-6)
    assert outcome.losses[0] > 0.1  # biased at first


def test_the_recording_is_found_at_its_own_points() -> None:
    task = make_task("T5 digits", 0)
    number = int(task.losses[:, -1].argmin())
    points = np.load(Path(tasks.__file__).with_name("digits.npz"))
    config = {
        param.name: param.at(float(u))
        for param, u in zip(DIGITS_SPACE, points["points"][number], strict=True)
    }
    outcome = task.outcome(config)
    assert outcome.regret == 0
    assert outcome.losses == pytest.approx(points["losses"][number].tolist())
    assert all(math.isfinite(loss) for loss in outcome.losses)


def test_a_tenth_crashes_and_a_tenth_is_invalid() -> None:
    task = make_task("T6 faulty", 0)
    outcomes = [task.outcome(config) for config in itertools.islice(task.stream(), 1000)]
    assert 70 < sum(outcome.fails_at is not None for outcome in outcomes) < 130
    assert 70 < sum(outcome.invalid for outcome in outcomes) < 130


@pytest.mark.parametrize(
    "param", dict.fromkeys((*CURVES_SPACE, *DIGITS_SPACE, *COUNTING_SPACE)), ids=str
)
def test_parameters_map_to_the_unit_interval_and_back(param) -> None:
    for u in (0.0, 0.3, 0.999):
        value = param.at(u)
        assert -1e-9 < param.unit(value) < 1 + 1e-9
        if param.kind == "choice":
            assert value in param.choices
        else:
            assert param.at(param.unit(value)) == pytest.approx(value)
