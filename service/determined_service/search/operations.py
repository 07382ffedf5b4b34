"""Sums up a batch of searcher operations by trial: :func:`fold`, a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from determined_searchers import (
    Close,
    Create,
    SearcherError,
    SetProgress,
    Shutdown,
    Stop,
    ValidateAfter,
    operation_from_json,
)
from determined_service.base.errors import BadRequest


@dataclass(slots=True)
class TrialChange:
    """Everything one batch asks of one trial."""

    create: Create | None = None
    length: int | None = None
    """The absolute target of its last ValidateAfter."""
    targets: int = 0
    close: bool = False
    stop: bool = False


@dataclass(slots=True)
class OperationBatch:
    """A batch of operations, by trial (request id) in the order of their first mention."""

    trials: dict[str, TrialChange] = field(default_factory=dict)
    shutdown: Shutdown | None = None
    progress: float | None = None

    def created(self) -> list[tuple[str, TrialChange]]:
        return [item for item in self.trials.items() if item[1].create is not None]

    def known(self) -> list[str]:
        """Request ids of trials that must exist already."""
        return [name for name, change in self.trials.items() if change.create is None]


def fold(operations: Iterable[Mapping[str, Any]]) -> OperationBatch:
    """Collect the operations in a batch. Raises BadRequest for an invalid operation."""
    batch = OperationBatch()
    for data in operations:
        try:
            operation = operation_from_json(data)
        except SearcherError as error:
            raise BadRequest(str(error)) from error
        match operation:
            case Shutdown():
                batch.shutdown = operation
            case SetProgress():
                batch.progress = operation.progress
            case Create(checkpoint=str(), source=str()):
                raise BadRequest(
                    f"trial {operation.request_id}: give either checkpoint or source, not both"
                )
            case Create() | ValidateAfter() | Close() | Stop():
                _note(batch.trials.setdefault(operation.request_id, TrialChange()), operation)
    return batch


def _note(change: TrialChange, operation: Create | ValidateAfter | Close | Stop) -> None:
    match operation:
        case Create():
            change.create = operation
        case ValidateAfter():
            change.length = operation.length
            change.targets += 1
        case Close():
            change.close = True
        case Stop():
            change.stop = True
            change.close = True
