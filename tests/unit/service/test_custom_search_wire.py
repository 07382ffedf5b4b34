"""Custom searchers on the wire: every event and operation in Determined's JSON."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest

from determined_searchers import (
    Close,
    Create,
    ExitReason,
    SetProgress,
    Shutdown,
    TrialClosed,
    TrialCreated,
    TrialExitedEarly,
    TrialProgress,
    ValidateAfter,
    ValidationCompleted,
)
from determined_service.search.custom_wire import (
    event_json,
    inactive_event,
    queue_json,
    read_operations,
)

ID = "2f9bd9b5-1f5b-4a5c-8a5c-4b1c9b1e3a52"
OTHER = "00000000-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("event", "json"),
    [
        (TrialCreated(ID), {"trialCreated": {"requestId": ID}}),
        (TrialClosed(ID), {"trialClosed": {"requestId": ID}}),
        (TrialProgress(ID, 2.5), {"trialProgress": {"requestId": ID, "partialUnits": 2.5}}),
        (
            ValidationCompleted(ID, 0.5, 100),
            {
                "validationCompleted": {
                    "requestId": ID,
                    "metric": 0.5,
                    "validateAfterLength": "100",
                }
            },
        ),
        (
            ValidationCompleted(ID, float("nan"), 1),
            {
                "validationCompleted": {
                    "requestId": ID,
                    "metric": "NaN",
                    "validateAfterLength": "1",
                }
            },
        ),
        (
            ValidationCompleted(ID, {"any": ["JSON", None]}, 1),
            {
                "validationCompleted": {
                    "requestId": ID,
                    "metric": {"any": ["JSON", None]},
                    "validateAfterLength": "1",
                }
            },
        ),
    ],
)
def test_events(event: Any, json: dict[str, Any]) -> None:
    assert event_json(7, event.to_json()) == {"id": 7, **json}


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (ExitReason.ERRORED, "UNSPECIFIED"),
        (ExitReason.INVALID_HP, "INVALID_HP"),
        (ExitReason.INIT_INVALID_HP, "INVALID_HP"),
        (ExitReason.USER_REQUESTED_STOP, "USER_REQUESTED_STOP"),
        (ExitReason.USER_CANCELED, "USER_CANCELED"),
    ],
)
def test_reasons_of_early_exits(reason: ExitReason, name: str) -> None:
    found = event_json(1, TrialExitedEarly(ID, reason).to_json())
    assert found["trialExitedEarly"] == {"requestId": ID, "exitedReason": f"EXITED_REASON_{name}"}


def test_the_first_event_and_that_of_a_state() -> None:
    assert "initialOperations" in event_json(1, {"type": "initial_operations"})
    assert inactive_event("PAUSED") == {
        "id": -1,
        "experimentInactive": {"experimentState": "STATE_PAUSED"},
    }


def test_an_event_of_another_kind_of_search_is_a_fault() -> None:
    with pytest.raises(ValueError, match="trial_reported"):
        event_json(1, {"type": "trial_reported", "request_id": ID})


def test_only_the_newest_progress_of_a_trial_is_in_the_queue() -> None:
    events = [
        TrialProgress(ID, 1.0),
        TrialProgress(OTHER, 1.0),
        TrialProgress(ID, 2.0),
        TrialCreated(OTHER),
        TrialProgress(ID, 3.0),
    ]
    queue = [{"id": n, "event": e.to_json()} for n, e in enumerate(events, start=4)]
    found = queue_json(queue)
    assert [event["id"] for event in found] == [5, 7, 8]
    assert found[-1]["trialProgress"]["partialUnits"] == 3.0


@pytest.mark.parametrize(
    ("json", "operation"),
    [
        (
            {"createTrial": {"requestId": ID, "hyperparams": '{"lr": 0.1}'}},
            Create(ID, {"lr": 0.1}, 42),
        ),
        (
            {"createTrial": {"requestId": ID.upper(), "hyperparams": "{}", "seed": 0}},
            Create(ID, {}, 0),
        ),
        (
            {"createTrial": {"requestId": ID, "hyperparams": "{}", "checkpoint": OTHER}},
            Create(ID, {}, 42, checkpoint=OTHER),
        ),
        (
            {"trialOperation": {"validateAfter": {"requestId": ID, "length": "100"}}},
            ValidateAfter(ID, 100),
        ),
        ({"closeTrial": {"requestId": ID}, "shutDown": None}, Close(ID)),
        ({"shutDown": {"cancel": False, "failure": True}}, Shutdown(False, True)),
        ({"shutDown": {}}, Shutdown()),
        ({"setSearcherProgress": {"progress": 0.25}}, SetProgress(0.25)),
        ({"setSearcherProgress": {"progress": "NaN"}}, SetProgress(0.0)),
        ({"setSearcherProgress": {"progress": 1.5}}, SetProgress(1.0)),
    ],
)
def test_operations(json: dict[str, Any], operation: Any) -> None:
    assert read_operations([json]) == ([operation], [])


@pytest.mark.parametrize(
    ("json", "words"),
    [
        (None, "an operation is an object, not None"),
        ({}, r"not an operation: \[\] \(allowed: one of createTrial"),
        ({"createTrials": {}}, "not an operation: \\['createTrials'\\]"),
        ({"createTrial": {"requestId": "x", "hyperparams": "{}"}}, "requestId 'x' is no UUID"),
        ({"createTrial": {"requestId": ID, "hyperparams": "{"}}, "hyperparams is not JSON"),
        ({"createTrial": {"requestId": ID, "hyperparams": "[]"}}, r"hparams cannot be \[\]"),
        ({"createTrial": {"requestId": ID}}, "hparams cannot be None"),
        ({"trialOperation": {"validateAfter": {"requestId": ID, "length": "0"}}}, "at least 1"),
        ({"trialOperation": {"validateAfter": {"requestId": ID}}}, "at least 1"),
        ({"trialOperation": {"trainFor": {}}}, "not an operation"),
        ({"trialOperation": {"validateAfter": {"requestId": ID, "length": "8.5"}}}, "8.5"),
        ({"setSearcherProgress": {}}, "searcherOperations"),
    ],
)
def test_unreadable_files_are_left_out(json: Any, words: str) -> None:
    good = {"closeTrial": {"requestId": ID}}
    read, problems = read_operations([good, json, good])
    assert read == [Close(ID), Close(ID)]
    (problem,) = problems
    assert problem.startswith("searcherOperations[1]: ")
    assert re.search(words, problem)


def test_ids_are_written_one_way() -> None:
    (close,), _ = read_operations([{"closeTrial": {"requestId": uuid.UUID(ID).hex}}])
    assert close == Close(ID)
