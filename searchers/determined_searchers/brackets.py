"""The layout of a halving search: rung lengths, brackets, and each bracket's share.

The schedule is that of ASHA (Li et al., "A System for Massively Parallel Hyperparameter Tuning",
2020) with Hyperband's brackets (Li et al., 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from determined_searchers.errors import SearcherError

MODES = ("aggressive", "standard", "conservative")


@dataclass(frozen=True)
class Bracket:
    """One ASHA of an adaptive search; ``cap`` is how many of its trials may have work at once."""

    rungs: int
    max_trials: int
    cap: int


def rung_lengths(max_length: int, rungs: int, divisor: float) -> list[int]:
    """Total lengths at which trials are compared: each ``divisor`` times the one below, at least 1.

    Short ``max_length`` makes the lowest rungs coincide.
    """
    return [max(int(max_length / power(divisor, rungs - 1 - i)), 1) for i in range(rungs)]


def bracket_rungs(
    mode: str, max_rungs: int, max_length: int, max_trials: int, divisor: float
) -> list[int]:
    """Rungs of each bracket, most rungs (most early stopping) first."""
    most = min(max_rungs, levels(max_length, divisor), levels(max_trials, divisor))
    least = {"aggressive": most, "standard": (most - 1) // 2 + 1, "conservative": 1}[mode]
    return list(range(most, least - 1, -1))


def lay_out(rungs: list[int], max_trials: int, cap: int, divisor: float) -> list[Bracket]:
    """Shares trials and concurrency among brackets of ``rungs`` (most first).

    Each bracket has at least one trial and one place, so with more brackets than ``max_trials`` or
    than ``cap`` the sums are larger than asked for. ``cap`` 0: no cap but the brackets' own.
    """
    trials = _share_trials(rungs, max_trials, divisor)
    if cap == 0:
        caps = [max(trials[-1], int(divisor))] * len(rungs)
    else:
        each, left = divmod(max(cap, len(rungs)), len(rungs))
        caps = [each + (i < left) for i in range(len(rungs))]
    return [Bracket(*bracket) for bracket in zip(rungs, trials, caps, strict=True)]


def _share_trials(rungs: list[int], max_trials: int, divisor: float) -> list[int]:
    """In proportion to divisor^(rungs-1)/rungs, so that brackets cost about the same."""
    weights = [power(divisor, k - 1) / k for k in rungs]
    total = 0.0
    for weight in weights:  # left to right: sum() compensates rounding in newer Pythons
        total += weight
    trials = [max(int(weight / total * max_trials), 1) for weight in weights]
    trials[0] += max(max_trials - sum(trials), 0)
    return trials


def levels(n: int, divisor: float) -> int:
    """The number of rungs that ``n`` allows: floor(log_divisor n) + 1, in floating point."""
    return int(natural_log(n) / natural_log(divisor)) + 1


def power(divisor: float, exponent: int) -> float:
    """divisor^exponent. Raises SearcherError when no float is that large."""
    try:
        return float(divisor) ** exponent
    except OverflowError:
        raise SearcherError(
            f"searcher: {exponent + 1} rungs are too many for divisor {divisor}"
        ) from None


def natural_log(x: float) -> float:
    """ln x for x >= 1 by fdlibm's formula (Sun Microsystems, 1993).

    Not ``math.log``: whether ln 243 / ln 3 comes out as 5 or just below depends on the last bit,
    and so would the number of rungs on the platform's C library.
    """
    fraction, exponent = math.frexp(x)
    if fraction < math.sqrt(0.5):
        fraction, exponent = fraction * 2, exponent - 1
    f = fraction - 1
    s = f / (2 + f)
    s2 = s * s
    s4 = s2 * s2
    odd = s2 * (_L[0] + s4 * (_L[2] + s4 * (_L[4] + s4 * _L[6])))
    even = s4 * (_L[1] + s4 * (_L[3] + s4 * _L[5]))
    half = 0.5 * f * f
    return exponent * _LN2_HIGH - ((half - (s * (half + odd + even) + exponent * _LN2_LOW)) - f)


_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_L = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860510658591e-01,
)
