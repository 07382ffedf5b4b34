"""The ranking of a rung, beside a plain sorted list that does the same slowly."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from typing import Any

import pytest

from determined_searchers.rung import Rung


class Plain:
    """Entries in a list, as the definition of the two rules has it."""

    def __init__(self, divisor: float, at_least: int, equals_first: bool) -> None:
        self.divisor, self.at_least = divisor, at_least
        self.bisect: Any = bisect_left if equals_first else bisect_right
        self.entries: list[tuple[float, str]] = []

    def add(self, trial: str, metric: float) -> str | None:
        before = self.share()
        place = self.bisect(self.entries, metric, key=lambda entry: entry[0])
        self.entries.insert(place, (metric, trial))
        share = self.share()
        if place < share:
            return trial
        return self.entries[before][1] if share > before else None

    def share(self) -> int:
        count = len(self.entries)
        return min(max(int(count / self.divisor), self.at_least), count)


@pytest.mark.parametrize("seed", range(40))
def test_the_same_as_a_sorted_list(seed: int) -> None:
    chance = random.Random(seed)
    divisor = chance.choice([1.1, 1.5, 2, 2.5, 3, 4])
    rule = chance.choice([(0, False), (1, True)])
    levels = chance.choice([1, 4, 10**6])
    rung, plain = Rung(5, divisor, *rule), Plain(divisor, *rule)
    for number in range(300):
        if plain.entries and chance.random() < 0.2:
            gone = chance.choice(plain.entries)
            plain.entries.remove(gone)
            rung.withdraw(gone[1])
        trial, metric = str(number), chance.randrange(levels) / levels
        entry = rung.add(rung.entry(trial, metric))
        assert (entry and entry[2]) == plain.add(trial, metric)
        assert rung.measured == len(plain.entries)
        if number % 10 == 0:
            assert [(metric, trial) for metric, _, trial in rung.ranking()] == plain.entries
        if number % 50 == 0:
            loaded = Rung(5, divisor, *rule)
            loaded.load((trial, metric) for metric, _, trial in rung.ranking())
            rung = loaded


def test_cost_grows_with_the_logarithm() -> None:
    """The cost of a ranking is its comparisons, which can be counted on a busy machine."""
    compared = 0

    class Counted(float):
        def __lt__(self, other: float) -> bool:
            nonlocal compared
            compared += 1
            return float(self) < float(other)

        def __neg__(self) -> Counted:
            return Counted(-float(self))

    def cost(trials: int) -> float:
        nonlocal compared
        chance = random.Random(1)
        rung = Rung(1, 3, 0, False)
        for number in range(trials):
            rung.add(rung.entry(str(number), Counted(chance.random())))
        before = compared
        for number in range(trials, trials + 500):
            rung.add(rung.entry(str(number), Counted(chance.random())))
        return (compared - before) / 500

    assert cost(5_000) < cost(200) + 20
