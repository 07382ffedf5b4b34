"""What to do about a driver that is silent."""

from __future__ import annotations

import datetime

import pytest

from determined_service.loops.reconciler import judge_driver
from determined_service.prefect.gateway import RunState

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("type_", "in_state_s", "silent_s", "verdict"),
    [
        ("SCHEDULED", 500, 500, "poll"),
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
def test_verdict(type_: str, in_state_s: int, silent_s: float, verdict: str) -> None:
    since = NOW - datetime.timedelta(seconds=in_state_s)
    assert judge_driver(RunState(type_, type_.title(), None, since, 1), silent_s, NOW) == verdict
