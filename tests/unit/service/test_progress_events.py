"""A trial's progress becomes an event of its search now and then, not with every report."""

from __future__ import annotations

import pytest

from determined_service.lifecycle.progress import EVENT_S, ProgressEvents


def test_one_event_in_a_while_for_each_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    events = ProgressEvents()
    assert [events.is_due(1), events.is_due(1), events.is_due(2)] == [True, False, True]
    now += EVENT_S - 0.1
    assert not events.is_due(1)
    now += 0.1
    assert [events.is_due(1), events.is_due(1)] == [True, False]
