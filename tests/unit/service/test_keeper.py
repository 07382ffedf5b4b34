"""The keeper's actions on a silent flow, and when it gives an owner up."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from determined_service.prefect.gateway import RunState
from determined_service.prefect.keeper import FORGET_S, count_interruption, judge

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def verdict(type_: str, in_state_s: float, silent_s: float, **how: bool) -> str:
    since = NOW - datetime.timedelta(seconds=in_state_s)
    return judge(RunState(type_, type_.title(), None, since, 1), silent_s, 60.0, NOW, **how)


@pytest.mark.parametrize(
    ("type_", "in_state_s", "silent_s", "expected"),
    [
        ("SCHEDULED", 500, 500, "remind"),
        ("PENDING", 10, 500, "wait"),
        ("PENDING", 500, 500, "restart"),
        ("RUNNING", 500, 25, "wait"),
        ("RUNNING", 10, 500, "wait"),
        ("RUNNING", 500, 61, "restart"),
        ("CRASHED", 1, 25, "restart"),
        ("FAILED", 1, 25, "restart"),
        ("COMPLETED", 1, 25, "restart"),
        ("CANCELLING", 1, 25, "cancel"),
        ("CANCELLED", 1, 25, "cancel"),
    ],
)
def test_verdict(type_: str, in_state_s: int, silent_s: float, expected: str) -> None:
    assert verdict(type_, in_state_s, silent_s) == expected


def test_an_earlier_cancel_does_not_count() -> None:
    """Of an owner that goes on, and of one that cannot be cancelled."""
    assert verdict("CANCELLED", 1, 1, heeds_cancel=False) == "restart"
    assert verdict("CANCELLING", 1, 1, heeds_cancel=False) == "wait"
    assert verdict("CANCELLING", 61, 61, heeds_cancel=False) == "restart"


def test_only_interruptions_in_a_row_count() -> None:
    def row(interruptions: int, interrupted_s: float | None) -> Any:
        return SimpleNamespace(
            interruptions=interruptions, interrupted_s=interrupted_s, progress="7"
        )

    assert count_interruption(row(0, None), "7") == 1
    assert count_interruption(row(2, 5.0), "7") == 3
    # The flow has got something done in between: it works, something else kills it.
    assert count_interruption(row(2, 5.0), "8") == 1
    assert count_interruption(row(2, FORGET_S + 1), "7") == 1
