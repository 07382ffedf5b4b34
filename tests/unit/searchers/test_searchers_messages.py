"""Events and operations in JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from determined_searchers import (
    Close,
    Create,
    ExitReason,
    MetricMissing,
    SearcherError,
    SetProgress,
    Shutdown,
    Stop,
    TrialClosed,
    TrialCreated,
    TrialExitedEarly,
    TrialProgress,
    TrialReported,
    ValidateAfter,
    ValidationCompleted,
    event_from_json,
    operation_from_json,
)

EVENTS = [
    TrialCreated("a"),
    ValidationCompleted("a", 0.5, 10),
    ValidationCompleted("a", None, 10),
    ValidationCompleted("a", -math.inf, 10),
    ValidationCompleted("a", {"any": ["json"]}, 10),
    TrialReported("a", 3.0, 0.25),
    TrialReported("a", None, math.inf, 12),
    MetricMissing("a", "no loss"),
    TrialProgress("a", 0.5),
    TrialExitedEarly("a", ExitReason.INVALID_HP),
    TrialClosed("a"),
]
OPERATIONS = [
    Create("a", {"x": {"y": [1, None]}}, 42),
    Create("a", {}, 0, "c0ffee"),
    ValidateAfter("a", 7),
    Close("a"),
    Stop("a"),
    Shutdown(),
    Shutdown(cancel=True, failure=True),
    SetProgress(0.5),
]


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_events_survive_json(event: Any) -> None:
    assert event_from_json(json.loads(json.dumps(event.to_json(), allow_nan=False))) == event


@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_operations_survive_json(operation: Any) -> None:
    data = json.loads(json.dumps(operation.to_json(), allow_nan=False))
    assert operation_from_json(data) == operation


def test_json_forms() -> None:
    assert ValidationCompleted("a", math.nan, 3).to_json() == {
        "type": "validation_completed",
        "request_id": "a",
        "metric": "NaN",
        "length": 3,
    }
    assert TrialExitedEarly("a", ExitReason.ERRORED).to_json() == {
        "type": "trial_exited_early",
        "request_id": "a",
        "reason": "ERRORED",
    }
    assert Create("a", {"x": 1}, 5).to_json() == {
        "type": "create",
        "request_id": "a",
        "hparams": {"x": 1},
        "seed": 5,
        "checkpoint": None,
        "source": None,
    }
    assert Shutdown(failure=True).to_json() == {
        "type": "shutdown",
        "cancel": False,
        "failure": True,
    }


def test_nan_survives_json() -> None:
    event = event_from_json(
        {"type": "trial_reported", "request_id": "a", "time": 1, "metric": "NaN"}
    )
    assert isinstance(event, TrialReported)
    assert event.metric is not None
    assert math.isnan(event.metric)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "must be an object"),
        ({}, "unknown searcher event None"),
        ({"type": "close", "request_id": "a"}, "unknown searcher event 'close'; known are"),
        ({"type": "trial_closed"}, r"trial_closed needs \['request_id'\]"),
        ({"type": "trial_closed", "request_id": "a", "x": 1}, r"does not take \['x'\]"),
        ({"type": "trial_closed", "request_id": 3}, "request_id cannot be 3"),
        (
            {"type": "trial_exited_early", "request_id": "a", "reason": "BORED"},
            "reason cannot be 'BORED'",
        ),
        (
            {"type": "validation_completed", "request_id": "a", "metric": 1, "length": 0},
            "length cannot be 0",
        ),
        (
            {"type": "validation_completed", "request_id": "a", "metric": 1, "length": True},
            "length cannot be True",
        ),
        ({"type": "trial_progress", "request_id": "a", "progress": "far"}, "cannot be 'far'"),
    ],
)
def test_events_that_are_none(data: Any, message: str) -> None:
    with pytest.raises(SearcherError, match=message):
        event_from_json(data)


@pytest.mark.parametrize(
    "data",
    [
        {"type": "shutdown", "cancel": 1},
        {"type": "create", "request_id": "a", "hparams": [], "seed": 1},
        {"type": "create", "request_id": "a", "hparams": {}, "seed": 1.5},
        {"type": "validate_after", "request_id": "a", "length": -1},
        {"type": "validate_after", "request_id": "a", "length": 2**63},
    ],
)
def test_operations_that_are_none(data: Any) -> None:
    with pytest.raises(SearcherError, match="cannot be"):
        operation_from_json(data)


def test_messages_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Close("a").request_id = "b"  # type: ignore[misc]
