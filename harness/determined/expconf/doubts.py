"""Values that are allowed and probably not meant: :func:`doubts`, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

MOST = 5
"""So many of a kind are told."""
_HUGE = 1e30
"""No hyperparameter is as large."""
_NARROW = 1.5
_SMALL = 0.1


def doubts(config: Mapping[str, Any]) -> list[str]:
    """A sentence for each value of the (complete) ``config`` that probably means something else."""
    found = list(_log_ranges(config.get("hyperparameters") or {}, "hyperparameters"))
    more = len(found) - MOST
    rest = (
        f"{more} more log ranges are like these" if more > 1 else "1 more log range is like these"
    )
    return [*found[:MOST], rest] if more > 0 else found


def _log_ranges(space: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, value in space.items():
        if not isinstance(value, Mapping):
            continue
        if "type" not in value:
            yield from _log_ranges(value, f"{path}.{name}")
        elif value["type"] == "log" and _looks_like_values(value):
            yield _exponents(value, f"{path}.{name}")


def _looks_like_values(given: Mapping[str, Any]) -> bool:
    """Whether somebody wrote the smallest and the largest value in place of their exponents.

    As exponents such numbers give nearly the same value everywhere, begin at a power that nobody writes
    (10 to 0.0001), or end beyond all measure (10 to 100).
    """
    base, low, high = given["base"], given["minval"], given["maxval"]
    if base < 2 or low < 0:
        return False
    return bool(
        base ** (high - low) < _NARROW
        or (0 < low < _SMALL and high / low >= base)
        or base**high > _HUGE
    )


def _exponents(given: Mapping[str, Any], path: str) -> str:
    base, low, high = given["base"], given["minval"], given["maxval"]
    words = (
        f"{path}: minval and maxval of a log range are exponents: {base:g} to the power of {low:g} … "
        f"{high:g} is {base**low:.5g} … {base**high:.5g}"
    )
    if low <= 0:
        return words
    meant = [f"{math.log(one, base):.4g}" for one in (low, high)]
    return (
        f"{words}; for values from {low:g} to {high:g} write minval: {meant[0]}, maxval: {meant[1]}"
    )
