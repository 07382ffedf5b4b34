"""Places between neighbours, and renumbering when no number is left between them."""

from __future__ import annotations

import pytest

from determined_service.scheduling.line_places import CLOSEST_S, place_beside

LINE = [(1, 100.0), (2, 200.0), (3, 300.0)]


@pytest.mark.parametrize(
    ("anchor", "ahead", "place"),
    [(1, True, 99.0), (2, True, 150.0), (1, False, 150.0), (3, True, 250.0), (3, False, 1000.0)],
)
def test_between_neighbours(anchor: int, ahead: bool, place: float) -> None:
    found = place_beside(LINE, anchor, ahead=ahead, moved=9, now=1000.0)
    assert found == {9: place}


def test_behind_the_last_that_was_moved_there() -> None:
    found = place_beside([(1, 2000.0)], 1, ahead=False, moved=9, now=1000.0)
    assert found == {9: 2000.0 + CLOSEST_S}


def test_without_room_all_get_new_places_in_the_same_order() -> None:
    close = [(1, 1e9), (2, 1e9), (3, 1e9 + 1e-6)]
    found = place_beside(close, 2, ahead=False, moved=9, now=2e9)
    assert sorted(found, key=lambda job: found[job]) == [1, 2, 9, 3]
    assert max(found.values()) <= 2e9
    assert len(set(found.values())) == 4


def test_requests_outside_the_line() -> None:
    with pytest.raises(ValueError):
        place_beside(LINE, 7, ahead=True, moved=9, now=0.0)
