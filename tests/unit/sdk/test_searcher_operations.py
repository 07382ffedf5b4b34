"""Operations, and the state that a runner keeps."""

from __future__ import annotations

import math
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from determined.searcher import (
    Close,
    Create,
    Operation,
    Progress,
    SearcherState,
    SearchMethod,
    Shutdown,
    ValidateAfter,
)

ID = uuid.UUID("2f9bd9b5-1f5b-4a5c-8a5c-4b1c9b1e3a52")


@pytest.mark.parametrize(
    ("operation", "json"),
    [
        (
            Create(ID, {"lr": 0.1, "layers": [1, 2]}, None),
            {"createTrial": {"requestId": str(ID), "hyperparams": '{"lr": 0.1, "layers": [1, 2]}'}},
        ),
        (
            Create(request_id=ID, hparams={}, checkpoint="c-1", seed=7),
            {
                "createTrial": {
                    "requestId": str(ID),
                    "hyperparams": "{}",
                    "checkpoint": "c-1",
                    "seed": 7,
                }
            },
        ),
        (
            ValidateAfter(ID, 2**40),
            {
                "trialOperation": {
                    "validateAfter": {"requestId": str(ID), "length": "1099511627776"}
                }
            },
        ),
        (ValidateAfter(str(ID), 9.0), ValidateAfter(ID, 9).to_json()),  # type: ignore[arg-type]
        (Close(ID), {"closeTrial": {"requestId": str(ID)}}),
        (Progress(0.25), {"setSearcherProgress": {"progress": 0.25}}),
        (Progress(math.nan), {"setSearcherProgress": {"progress": 0.0}}),
        (Shutdown(), {"shutDown": {"cancel": False, "failure": False}}),
        (Shutdown(cancel=True), {"shutDown": {"cancel": True, "failure": False}}),
        (Shutdown(failure=True), {"shutDown": {"cancel": False, "failure": True}}),
    ],
)
def test_the_json_of_operations(operation: Operation, json: dict[str, Any]) -> None:
    assert operation.to_json() == json


def test_a_create_takes_a_checkpoint_object() -> None:
    checkpoint: Any = SimpleNamespace(uuid="c-2")
    assert Create(ID, {}, checkpoint).to_json()["createTrial"]["checkpoint"] == "c-2"


def test_hparams_changed_later_are_not_sent() -> None:
    hparams = {"lr": 1}
    create = Create(ID, hparams, None)
    hparams["lr"] = 2
    assert create.hparams == '{"lr": 1}'


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ValidateAfter(ID, 0), ValueError, "whole number of at least 1, found 0"),
        (lambda: ValidateAfter(ID, 1.5), ValueError, "whole number of at least 1, found 1.5"),
        (lambda: Create(ID, {"f": print}, None), TypeError, "not JSON serializable"),
        (lambda: Create(ID, {"f": math.nan}, None), ValueError, "not JSON compliant"),
        (lambda: Create(ID, [1], None), TypeError, "hparams must be a dict"),
        (lambda: Close("x"), ValueError, "badly formed"),
    ],
)
def test_operations_that_make_no_sense(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_the_state_survives_json() -> None:
    state = SearcherState()
    state.trials_created = {ID, uuid.UUID(int=1)}
    state.trials_closed = {ID}
    state.failures = {ID}
    state.trial_progress = {ID: 2.5}
    state.last_event_id = 12
    state.experiment_id = 3
    state.experiment_completed = True
    again = SearcherState()
    again.from_dict(state.to_dict())
    assert vars(again) == vars(state)
    assert again.to_dict() == state.to_dict()


class Nothing(SearchMethod):
    """Does nothing, and keeps a word."""

    word = ""

    def initial_operations(self, searcher_state: Any) -> list[Operation]:
        return []

    def on_trial_created(self, searcher_state: Any, request_id: Any) -> list[Operation]:
        return []

    def on_validation_completed(
        self, searcher_state: Any, request_id: Any, metric: Any, train_length: int
    ) -> list[Operation]:
        return []

    def on_trial_closed(self, searcher_state: Any, request_id: Any) -> list[Operation]:
        return []

    def on_trial_exited_early(
        self, searcher_state: Any, request_id: Any, exited_reason: Any
    ) -> list[Operation]:
        return []

    def progress(self, searcher_state: Any) -> float:
        return 0.0


def test_a_method_without_state(tmp_path: Path) -> None:
    state = SearcherState()
    state.last_event_id = 4
    Nothing().save(state, tmp_path, experiment_id=8)
    found, experiment_id = Nothing().load(tmp_path)
    assert (found.last_event_id, found.experiment_id, experiment_id) == (4, 8, 8)


def test_a_method_that_lacks_a_handler_is_refused() -> None:
    incomplete: Any = type("Incomplete", (SearchMethod,), {})
    with pytest.raises(TypeError, match="on_validation_completed"):
        incomplete()
