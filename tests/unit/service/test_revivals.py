"""How often an experiment's run is started again before the experiment is given up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from determined_service.loops import reconciler
from determined_service.loops.reconciler import FORGET_S, Reconciler


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    fake = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(reconciler, "time", SimpleNamespace(monotonic=lambda: fake.now))
    return fake


def row(committed_event_id: int, experiment_id: int = 1) -> Any:
    return SimpleNamespace(id=experiment_id, committed_event_id=committed_event_id)


def test_only_revivals_in_a_row_count(clock: SimpleNamespace) -> None:
    service = Reconciler(cast(Any, None), None, 30.0)
    assert [service._count_revival(row(7)) for _ in range(3)] == [1, 2, 3]
    assert service._count_revival(row(7, experiment_id=2)) == 1
    # The driver answered an event in between: it works, something else kills it.
    assert [service._count_revival(row(8)) for _ in range(2)] == [1, 2]
    clock.now += FORGET_S + 1
    assert service._count_revival(row(8)) == 1
