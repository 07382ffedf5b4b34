"""How many slots each experiment should have: :func:`shares`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Claimant:
    """``demand``: slots that it holds and wants, at most what it may have. ``unit``: the fewest slots that
    are of any use to it. ``weight``: positive."""

    demand: int
    unit: int = 1
    weight: float = 1.0


def shares(capacity: int, claimants: Sequence[Claimant]) -> list[int]:
    """Slots for each claimant, in the order given, which is that of arrival.

    In proportion to demand times weight; never more than the demand, and what one cannot use goes to the
    others. Nobody gets less than its unit as long as there are units for all; else who came first gets one.
    What is left by rounding goes, one by one, to who came first and wants more. The sum is the capacity, or
    the sum of the demands if that is less.
    """
    if sum(one.demand for one in claimants) <= capacity:
        return [one.demand for one in claimants]
    left = capacity
    least = []
    for one in claimants:
        mine = min(one.unit, one.demand)
        least.append(mine if mine <= left else 0)
        left -= least[-1]
    wanted = [one.demand * one.weight for one in claimants]
    if left == 0 or not any(wanted):
        found = list(least)
    else:
        level = _level(capacity, claimants, least, wanted)
        found = [
            max(low, min(one.demand, math.floor(level * want + EPSILON)))
            for one, low, want in zip(claimants, least, wanted, strict=True)
        ]
    left = capacity - sum(found)
    while left > 0:
        given = 0
        for at, one in enumerate(claimants):
            if left > 0 and found[at] < one.demand:
                found[at] += 1
                left -= 1
                given += 1
        assert given
    return found


def _level(
    capacity: int, claimants: Sequence[Claimant], least: Sequence[int], wanted: Sequence[float]
) -> float:
    """The largest factor by which all of ``wanted``, kept between ``least`` and the demands, fit the
    capacity."""

    def total(level: float) -> float:
        return sum(
            max(low, min(one.demand, level * want))
            for one, low, want in zip(claimants, least, wanted, strict=True)
        )

    # Between two of these the total grows evenly.
    bends = {0.0}
    for one, low, want in zip(claimants, least, wanted, strict=True):
        if want > 0:
            bends.update((low / want, one.demand / want))
    ordered = sorted(bends)
    low, high = 0, len(ordered) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if total(ordered[middle]) <= capacity:
            low = middle
        else:
            high = middle
    start, end = ordered[low], ordered[high]
    below, above = total(start), total(end)
    if above <= capacity or above == below:
        return end if above <= capacity else start
    return start + (end - start) * (capacity - below) / (above - below)
