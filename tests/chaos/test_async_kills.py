"""A training whose checkpoints are stored in the background, killed at fifty moments."""

from __future__ import annotations

from tests.training.pytorch.async_kills import check_killed


def test_killed_at_fifty_moments() -> None:
    check_killed(50)
