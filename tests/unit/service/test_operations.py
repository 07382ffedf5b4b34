"""Batches of searcher operations, folded by trial."""

from __future__ import annotations

import pytest

from determined_searchers import Close, Create, SetProgress, Shutdown, Stop, ValidateAfter
from determined_service.base.errors import BadRequest
from determined_service.search.operations import fold


def test_a_trials_operations_become_one_change() -> None:
    batch = fold(
        operation.to_json()
        for operation in (
            Create("a", {"x": 1}, 7),
            ValidateAfter("a", 10),
            Close("b"),
            Close("a"),
            Stop("c"),
            SetProgress(0.5),
            Shutdown(failure=True),
        )
    )
    assert list(batch.trials) == ["a", "b", "c"]
    first = batch.trials["a"]
    assert first.create is not None
    assert (first.create.hparams, first.create.seed) == ({"x": 1}, 7)
    assert (first.length, first.targets, first.close, first.stop) == (10, 1, True, False)
    assert batch.trials["c"].stop
    assert [name for name, _ in batch.created()] == ["a"]
    assert batch.known() == ["b", "c"]
    assert batch.progress == 0.5
    assert batch.shutdown == Shutdown(failure=True)


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ({"type": "validate_after", "request_id": "a", "length": 0}, "length cannot be 0"),
        ({"type": "close"}, "request_id"),
        ({}, "unknown searcher operation None"),
    ],
)
def test_nonsense_is_refused(operation: dict[str, object], text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        fold([operation])
