"""``-t 1 2`` is ``-t 1 -t 2``."""

from __future__ import annotations

import pytest

from determined.cli.tensorboard import spread


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("-t 1 2", "-t 1 -t 2"),
        ("7 8 -t 1 2 --detach 3", "7 8 -t 1 -t 2 --detach 3"),
        ("--trial-ids 1 2 3 -d", "--trial-ids 1 --trial-ids 2 --trial-ids 3 -d"),
        ("-t 1 -t 2 3", "-t 1 -t 2 -t 3"),
        ("7 8", "7 8"),
        ("-t x 1", "-t x 1"),
        ("-t", "-t"),
        ("-t 1 -- 2 3", "-t 1 -- 2 3"),
    ],
)
def test_numbers_behind_the_option(given: str, expected: str) -> None:
    assert spread(given.split()) == expected.split()
