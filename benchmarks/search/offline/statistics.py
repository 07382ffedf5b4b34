"""How contenders are compared: everything paired by seed, nothing assumed about distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata, wilcoxon


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    low: float
    median: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    low, median, high = np.percentile(values, [25, 50, 75])
    return Spread(float(low), float(median), float(high))


def wilcoxon_p(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Two-sided p of the signed-rank test over pairs; pairs that are equal count for both sides.

    1 when all pairs are equal.
    """
    differences = np.asarray(ours) - np.asarray(theirs)
    if not differences.any():
        return 1.0
    return float(wilcoxon(differences, zero_method="zsplit").pvalue)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """``p_values`` adjusted for their number by Holm's step-down rule."""
    adjusted: dict[str, float] = {}
    highest = 0.0
    ordered = sorted(p_values, key=p_values.__getitem__)
    for place, name in enumerate(ordered):
        highest = max(highest, min((len(ordered) - place) * p_values[name], 1.0))
        adjusted[name] = highest
    return adjusted


def mean_ranks(results: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean over pairs of each contender's rank, 1 the smallest, ties at their mean rank."""
    ranks = rankdata(np.array(list(results.values())), axis=0).mean(axis=1)
    return dict(zip(results, ranks.tolist(), strict=True))


def bootstrap_interval(
    ours: Sequence[float], theirs: Sequence[float], draws: int = 10_000
) -> tuple[float, float]:
    """95 % interval of median(ours) - median(theirs), drawing pairs anew."""
    pairs = np.array([ours, theirs])
    chance = np.random.default_rng(0)
    drawn = pairs[:, chance.integers(pairs.shape[1], size=(draws, pairs.shape[1]))]
    medians = np.median(drawn, axis=2)
    low, high = np.percentile(medians[0] - medians[1], [2.5, 97.5])
    return float(low), float(high)


def log_regret_area(
    curve: Sequence[float], times: Sequence[float], until: float, floor: float = 1e-4
) -> float:
    """Mean of log10(regret) over log time, from ``times[0]`` to ``until``. Smaller is better.

    ``floor`` is the smallest regret told apart.
    """
    count = sum(time <= until * (1 + 1e-9) for time in times)
    logs = np.log10(np.maximum(np.asarray(curve[:count], dtype=float), floor))
    at = np.log(times[:count])
    return float(np.trapezoid(logs, at) / (at[-1] - at[0]))
