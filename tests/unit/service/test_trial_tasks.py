"""The order of a trial's tasks."""

from __future__ import annotations

import random

from determined_service.state.trial_tasks import in_order


def test_the_first_is_first_and_the_tenth_is_behind_the_ninth() -> None:
    first = "7.0b6f0d6c-5c49-4b0e-8f1e-5d8d3f7a0001"
    expected = [first, *(f"{first}-{number}" for number in range(1, 12))]
    former = expected[:-1]
    random.Random(1).shuffle(former)
    assert in_order(expected[-1], former) == expected


def test_a_trial_that_was_never_continued_has_one() -> None:
    assert in_order("7.a", None) == ["7.a"]
