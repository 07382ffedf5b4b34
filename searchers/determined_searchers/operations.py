"""The operations that a searcher asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from determined_searchers.messages import (
    SearchMessage,
    flag,
    mapping,
    number,
    optional,
    positive,
    read_message,
    text,
    whole_number,
)


@dataclass(frozen=True, slots=True)
class Create(SearchMessage):
    """Make a trial. ``request_id`` (a UUID) is its name from now on; ``seed`` is its trial seed.

    ``checkpoint``: UUID of the checkpoint it starts from, or None. ``source``: request id of the
    trial whose latest checkpoint it starts from, or None; at most one of the two.
    """

    type: ClassVar[str] = "create"
    readers = {
        "request_id": text,
        "hparams": mapping,
        "seed": whole_number,
        "checkpoint": optional(text),
        "source": optional(text),
    }
    request_id: str
    hparams: dict[str, Any]
    seed: int
    checkpoint: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class ValidateAfter(SearchMessage):
    """Train the trial to ``length`` in all (not: by ``length`` more), then report its metric."""

    type: ClassVar[str] = "validate_after"
    readers = {"request_id": text, "length": positive}
    request_id: str
    length: int


@dataclass(frozen=True, slots=True)
class Close(SearchMessage):
    """The trial gets no further operations: it ends when it has done those it has."""

    type: ClassVar[str] = "close"
    readers = {"request_id": text}
    request_id: str


@dataclass(frozen=True, slots=True)
class Stop(SearchMessage):
    """Reports form: preempt the trial now; it saves a checkpoint, exits and is over."""

    type: ClassVar[str] = "stop"
    readers = {"request_id": text}
    request_id: str


@dataclass(frozen=True, slots=True)
class Shutdown(SearchMessage):
    """The search is over: in error if ``failure``, else canceled if ``cancel``, else completed."""

    type: ClassVar[str] = "shutdown"
    readers = {"cancel": flag, "failure": flag}
    cancel: bool = False
    failure: bool = False


@dataclass(frozen=True, slots=True)
class SetProgress(SearchMessage):
    """The search's own report of its progress, 0..1 (for methods that cannot be measured by trials)."""

    type: ClassVar[str] = "set_progress"
    readers = {"progress": number}
    progress: float


Operation = Create | ValidateAfter | Close | Stop | Shutdown | SetProgress
_CLASSES: tuple[type[Operation], ...] = (
    Create,
    ValidateAfter,
    Close,
    Stop,
    Shutdown,
    SetProgress,
)


def operation_from_json(data: Any) -> Operation:
    """The operation that ``to_json`` wrote. Raises SearcherError when ``data`` is not an operation."""
    return read_message(data, _CLASSES, "operation")
