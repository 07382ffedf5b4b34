"""The confidence in a gain: the paired bootstrap over the scores of each example. Needs numpy.

Both models are scored on the same examples. What differs between them is the mean of the differences per
example; the bootstrap draws as many differences again, with replacement, many times, and looks at how that
mean varies. No one bound holds its rate for all data, so the lowest of three is taken:

* the percentile, taken further out by as much as Student's t is wider than the normal distribution (the
  expanded percentile of Hesterberg, "What Teachers Should Know About the Bootstrap", 2015), because a sample
  varies less than what it was drawn from;
* Student's own bound: a large gain on one example raises the percentile, but also the standard error;
* the studentized bootstrap, for differences that are skewed: rare large losses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

RESAMPLES = 10_000
DRAWS = 100_000_000
"""At most so many numbers are drawn: with very many examples there are fewer resamples."""
LEAST_RESAMPLES = 1_000
LEAST_EXAMPLES = 10
_AT_ONCE = 4_000_000
_FEW = 64


def lower_bound(differences: Sequence[float], confidence: float, seed: int) -> float:
    """The number above which the mean of the differences lies, with this confidence (one-sided).

    ``differences``: one finite number for each example, positive where the challenger is better. The same
    arguments give the same number. Raises ValueError for fewer than :data:`LEAST_EXAMPLES`.
    """
    import numpy as np

    values = np.asarray(differences, dtype=np.float64)
    count = values.size
    if values.ndim != 1 or count < LEAST_EXAMPLES:
        raise ValueError(
            f"{count} examples are too few to say anything with confidence: at least {LEAST_EXAMPLES}"
        )
    resamples = max(LEAST_RESAMPLES, min(RESAMPLES, DRAWS // count))
    random = np.random.default_rng(seed)
    means, squares = _resampled(np, random, values, resamples)
    mean, error = values.mean(), values.std(ddof=1) / math.sqrt(count)
    if error == 0:
        return float(mean)
    percentile = np.quantile(means, expanded(1 - confidence, count))
    # Of each resample as of the sample. One whose values are all equal is infinitely far from the mean.
    errors = np.sqrt(np.maximum(squares - means**2, 0) / (count - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.nan_to_num((means - mean) / errors, nan=0.0)
    studentized = np.quantile(ratios, confidence, method="higher")
    student = student_quantile(confidence, count - 1)
    return float(min(percentile, mean - max(studentized, student) * error))


def _resampled(np: Any, random: Any, values: Any, resamples: int) -> tuple[Any, Any]:
    """The means of the resamples' values, and of their squares."""
    count = values.size
    distinct, often = np.unique(values, return_counts=True)
    if distinct.size <= _FEW:
        # Of accuracies there are three: how often each is drawn says the same as which were drawn.
        drawn = random.multinomial(count, often / count, size=resamples)
        return drawn @ distinct / count, drawn @ distinct**2 / count
    means, squares = np.empty(resamples), np.empty(resamples)
    block = max(1, _AT_ONCE // count)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = values[random.integers(0, count, size=(rows, count), dtype=np.int32)]
        means[start : start + rows] = drawn.mean(axis=1)
        squares[start : start + rows] = (drawn**2).mean(axis=1)
    return means, squares


def expanded(tail: float, count: int) -> float:
    """The share of resamples below the bound, for a one-sided ``tail`` and ``count`` examples."""
    normal = NormalDist()
    quantile = student_quantile(1 - tail, count - 1)
    return normal.cdf(-math.sqrt(count / (count - 1)) * quantile)


def student_quantile(share: float, degrees: int) -> float:
    """The quantile of Student's t, by its expansion around the normal one (to 0.3 % from 9 degrees on, for
    shares up to 0.99)."""
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, 1))
