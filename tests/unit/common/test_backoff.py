"""The waits between two tries."""

from __future__ import annotations

import random

import pytest

from determined.common import backoff
from determined.common.backoff import Backoff


class Always:
    """Chance that always takes the same end of the range."""

    def __init__(self, longest: bool) -> None:
        self._longest = longest

    def uniform(self, low: float, high: float) -> float:
        return high if self._longest else low


def delays(waits: Backoff, count: int) -> list[float]:
    return [waits.next_delay() for _ in range(count)]


def test_waits_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "_CHANCE", Always(longest=True))
    assert delays(Backoff(0.1, 0.5), 5) == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


def test_chance_takes_away_a_half_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "_CHANCE", Always(longest=False))
    assert delays(Backoff(0.1, 0.5), 5) == pytest.approx([0.05, 0.1, 0.2, 0.25, 0.25])


def test_two_processes_do_not_wait_alike() -> None:
    assert delays(Backoff(1.0, 60.0), 5) != delays(Backoff(1.0, 60.0), 5)


def test_after_a_reset_the_first_wait_is_short_again() -> None:
    waits = Backoff(0.1, 5.0)
    delays(waits, 6)
    assert waits.tries == 6
    waits.reset()
    assert waits.tries == 0
    assert waits.next_delay() <= 0.1


def test_the_training_codes_random_numbers_stay_as_they_are() -> None:
    random.seed(7)
    expected = random.getstate()
    delays(Backoff(0.1, 5.0), 10)
    assert random.getstate() == expected
