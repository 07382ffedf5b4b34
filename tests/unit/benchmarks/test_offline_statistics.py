"""The offline benchmark's statistics, against scipy and against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from benchmarks.search.offline.bars import verdicts
from benchmarks.search.offline.cells import Cell, row
from benchmarks.search.offline.results import Results
from benchmarks.search.offline.simulator import Run
from benchmarks.search.offline.statistics import (
    bootstrap_interval,
    holm,
    log_regret_area,
    mean_ranks,
    spread,
    wilcoxon_p,
)
from benchmarks.search.offline.tasks import make_task

CHANCE = np.random.default_rng(0)
BASE = CHANCE.random(50)


def test_wilcoxon_is_scipys_and_knows_equal_pairs() -> None:
    other = BASE + CHANCE.normal(0.05, 0.1, 50)
    assert wilcoxon_p(BASE, other) == pytest.approx(stats.wilcoxon(BASE, other).pvalue)
    assert wilcoxon_p(BASE, BASE) == 1
    half = np.where(np.arange(50) < 25, BASE, BASE + 0.1)
    assert wilcoxon_p(BASE, half) < 0.01


def test_holm_steps_down() -> None:
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.5})
    assert adjusted == pytest.approx({"a": 0.04, "c": 0.09, "b": 0.09, "d": 0.5})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}


def test_ranks_are_means_over_pairs() -> None:
    ranks = mean_ranks({"first": [1, 1, 5], "second": [2, 1, 4], "third": [3, 7, 9]})
    assert ranks == pytest.approx({"first": 1.5, "second": 1.5, "third": 3.0})


def test_the_bootstrap_agrees_with_scipys_and_sees_a_difference() -> None:
    worse = BASE + 0.2 + CHANCE.normal(0, 0.01, 50)
    low, high = bootstrap_interval(worse, BASE)
    theirs = stats.bootstrap(
        (worse, BASE),
        lambda x, y, axis: np.median(x, axis=axis) - np.median(y, axis=axis),
        paired=True,
        vectorized=True,
        method="percentile",
        rng=1,
    ).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.02)
    assert low > 0
    assert bootstrap_interval(BASE, BASE) == (0, 0)


def test_quartiles() -> None:
    found = spread([1, 2, 3, 4, 5])
    assert (found.low, found.median, found.high) == (2, 3, 4)


def test_the_area_is_a_mean_of_logarithms_over_log_time() -> None:
    times = list(np.geomspace(0.5, 20, 33))
    assert log_regret_area([0.01] * 33, times, until=6) == pytest.approx(-2)
    assert log_regret_area([0.0] * 33, times, until=6) == pytest.approx(-4)
    falling = [1 / time**2 for time in times]
    expected = -(np.log10(times[0]) + np.log10(times[-1]))
    assert log_regret_area(falling, times, until=20) == pytest.approx(expected)


def results(regrets: dict[str, list[float]]) -> Results:
    task = make_task("T1 curves4", 0)
    rows = []
    for tool, values in regrets.items():
        for seed, value in enumerate(values):
            found = Run(incumbents=[(10.0, value)], trials=1)
            rows.append(row(Cell(tool, "T1 curves4", seed, 8, 6.0), task, found, 1.0))
    return Results(rows)


def test_a_bar_fails_when_ours_is_worse() -> None:
    found = results(
        {
            "stop_once aggressive": list(BASE + 0.2),
            "Ray ASHA": list(BASE),
            "random": list(BASE + 0.1),
            "promotion aggressive": list(BASE / 2),
        }
    )
    by_bar = {}
    for verdict in verdicts(found):
        by_bar.setdefault(verdict.bar, []).append(verdict)
    assert [verdict.holds for verdict in by_bar["a"]] == [False, False]
    assert [verdict.holds for verdict in by_bar["b 0.75"]] == [True]
    worse_than_random = {v.figure.split()[0] for v in by_bar["b"] if not v.holds}
    assert worse_than_random == {"stop_once"}
    assert "e" not in by_bar


def test_only_common_seeds_are_paired() -> None:
    found = results({"a": [0.1, 0.2, 0.3], "b": [0.3, 0.2]})
    paired = found.paired("T1 curves4", 8, ("a", "b"), 6.0)
    assert paired == {"a": [0.1, 0.2], "b": [0.3, 0.2]}
    assert "b" not in found.paired("T1 curves4", 8, ("a", "b"), 20.0)
