"""The events that a searcher gets: facts about trials, in the order in which they were recorded."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from determined_searchers.messages import (
    SearchMessage,
    number,
    optional,
    positive,
    read_message,
    text,
)


class ExitReason(StrEnum):
    """The reason for which a trial ended before it had done all its operations."""

    ERRORED = "ERRORED"
    USER_CANCELED = "USER_CANCELED"
    USER_REQUESTED_STOP = "USER_REQUESTED_STOP"
    INVALID_HP = "INVALID_HP"
    INIT_INVALID_HP = "INIT_INVALID_HP"

    @property
    def invalid(self) -> bool:
        """True when the trial called its hyperparameters invalid: it never counted as a sample."""
        return self in (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP)


@dataclass(frozen=True, slots=True)
class TrialCreated(SearchMessage):
    """The trial that a Create asked for exists."""

    type: ClassVar[str] = "trial_created"
    readers = {"request_id": text}
    request_id: str


@dataclass(frozen=True, slots=True)
class ValidationCompleted(SearchMessage):
    """The trial has trained to ``length`` in all (in the searcher's unit) and reports ``metric``.

    ``metric`` is raw: any sign, NaN and None allowed; any JSON value if the method takes raw metrics.
    """

    type: ClassVar[str] = "validation_completed"
    readers = {"request_id": text, "length": positive}
    request_id: str
    metric: Any
    length: int


@dataclass(frozen=True, slots=True)
class TrialReported(SearchMessage):
    """Reports form: a validation at ``time`` (value of the time metric; None: not in the report).

    ``step`` is the number of batches trained, if the trial reported it.
    """

    type: ClassVar[str] = "trial_reported"
    readers = {
        "request_id": text,
        "time": optional(number),
        "metric": optional(number),
        "step": optional(positive),
    }
    request_id: str
    time: float | None
    metric: float | None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class MetricMissing(SearchMessage):
    """Reports form: the trial has validated, and none of its validations had the searcher's metric.

    ``words``: a sentence for people, which names the metric and what the validations have instead.
    """

    type: ClassVar[str] = "metric_missing"
    readers = {"request_id": text, "words": text}
    request_id: str
    words: str


@dataclass(frozen=True, slots=True)
class TrialProgress(SearchMessage):
    """The progress of the trial: units of length (operations form) or a fraction 0..1 (reports form)."""

    type: ClassVar[str] = "trial_progress"
    readers = {"request_id": text, "progress": number}
    request_id: str
    progress: float


@dataclass(frozen=True, slots=True)
class TrialExitedEarly(SearchMessage):
    """The trial has ended, or is about to, for ``reason``. Its TrialClosed follows."""

    type: ClassVar[str] = "trial_exited_early"
    readers = {"request_id": text, "reason": ExitReason}
    request_id: str
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class TrialClosed(SearchMessage):
    """The trial is over: no process of it runs any more and none ever will."""

    type: ClassVar[str] = "trial_closed"
    readers = {"request_id": text}
    request_id: str


Event = (
    TrialCreated
    | ValidationCompleted
    | TrialReported
    | MetricMissing
    | TrialProgress
    | TrialExitedEarly
    | TrialClosed
)
_CLASSES: tuple[type[Event], ...] = (
    TrialCreated,
    ValidationCompleted,
    TrialReported,
    MetricMissing,
    TrialProgress,
    TrialExitedEarly,
    TrialClosed,
)


def event_from_json(data: Any) -> Event:
    """The event that ``to_json`` wrote. Raises SearcherError when ``data`` is not an event."""
    return read_message(data, _CLASSES, "event")
