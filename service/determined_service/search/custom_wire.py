"""Custom searchers on the wire: our events and operations in the JSON of Determined's clients. Pure."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from determined.common.wire.checks import show
from determined_searchers import (
    Close,
    Create,
    ExitReason,
    Operation,
    SearcherError,
    SetProgress,
    Shutdown,
    ValidateAfter,
    operation_from_json,
)

TRIAL_SEED = 42
"""The seed of a trial whose Create names none, as published clients' never do."""

INITIAL_OPERATIONS = "initial_operations"
INACTIVE_ID = -1
"""Id of the event that tells of a state: it is in no queue and needs no answer."""

# Published clients have no name for these two.
_REASONS = {
    ExitReason.ERRORED: "UNSPECIFIED",
    ExitReason.INIT_INVALID_HP: ExitReason.INVALID_HP,
}


def inactive_event(state: str) -> dict[str, Any]:
    """The event of an experiment that is paused or has ended."""
    return {"id": INACTIVE_ID, "experimentInactive": {"experimentState": f"STATE_{state}"}}


def event_json(event_id: int, event: Mapping[str, Any]) -> dict[str, Any]:
    """One queued ``event`` (the JSON of determined_searchers' events, or the initial one)."""
    trial = {"requestId": event.get("request_id")}
    match event["type"]:
        case "initial_operations":
            found: dict[str, Any] = {"initialOperations": {"placeholder": 0}}
        case "trial_created":
            found = {"trialCreated": trial}
        case "trial_progress":
            found = {"trialProgress": trial | {"partialUnits": event["progress"]}}
        case "validation_completed":
            # A 64-bit number is a string in Determined's JSON.
            done = {"metric": event["metric"], "validateAfterLength": str(event["length"])}
            found = {"validationCompleted": trial | done}
        case "trial_exited_early":
            reason = ExitReason(event["reason"])
            name = _REASONS.get(reason, reason)
            found = {"trialExitedEarly": trial | {"exitedReason": f"EXITED_REASON_{name}"}}
        case "trial_closed":
            found = {"trialClosed": trial}
        case kind:
            raise ValueError(f"{kind!r} is not an event of a custom search")
    return {"id": event_id, **found}


def queue_json(queue: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The queue (rows of ``id`` and ``event``) without progress that newer progress has replaced.

    A search method that was away for hours would be sent one event for every few seconds of each trial. Ids
    then have gaps, which is harmless: an answer removes all earlier events from the queue.
    """
    rows = list(queue)
    newest = {
        row["event"]["request_id"]: row["id"]
        for row in rows
        if row["event"]["type"] == "trial_progress"
    }
    return [
        event_json(row["id"], row["event"])
        for row in rows
        if row["event"]["type"] != "trial_progress"
        or newest[row["event"]["request_id"]] == row["id"]
    ]


def read_operations(given: Iterable[Any]) -> tuple[list[Operation], list[str]]:
    """(operations, problems): what cannot be read is left out, with the reason in words."""
    read: list[Operation] = []
    problems: list[str] = []
    for place, item in enumerate(given):
        try:
            read.append(_operation(item))
        except (SearcherError, TypeError, ValueError, OverflowError, AttributeError) as error:
            problems.append(f"searcherOperations[{place}]: {error}")
    return read, problems


def _operation(given: Any) -> Operation:
    if not isinstance(given, Mapping):
        raise ValueError(f"an operation is an object, not {show(given)}")
    named = {kind: value for kind, value in given.items() if value is not None}
    match named:
        case {"createTrial": dict(fields)}:
            return _create(fields)
        case {"trialOperation": {"validateAfter": dict(fields)}}:
            return _checked(ValidateAfter(_request_id(fields), int(fields.get("length") or 0)))
        case {"closeTrial": dict(fields)}:
            return Close(_request_id(fields))
        case {"shutDown": dict(fields)}:
            return Shutdown(bool(fields.get("cancel")), bool(fields.get("failure")))
        case {"setSearcherProgress": dict(fields)}:
            return SetProgress(_fraction(fields.get("progress")))
    allowed = "createTrial, trialOperation.validateAfter, closeTrial, shutDown, setSearcherProgress"
    raise ValueError(f"not an operation: {sorted(named)} (allowed: one of {allowed})")


def _create(fields: Mapping[str, Any]) -> Operation:
    """``checkpoint`` and ``seed`` are ours; published clients send neither."""
    try:
        hparams = orjson.loads(fields.get("hyperparams") or "null")
    except orjson.JSONDecodeError as error:
        raise ValueError(f"createTrial.hyperparams is not JSON: {error}") from error
    checkpoint = fields.get("checkpoint")
    seed = fields.get("seed")
    return _checked(
        Create(
            _request_id(fields),
            hparams,
            TRIAL_SEED if seed is None else int(seed),
            checkpoint=None if checkpoint is None else str(uuid.UUID(str(checkpoint))),
        )
    )


def _request_id(fields: Mapping[str, Any]) -> str:
    given = fields.get("requestId")
    try:
        return str(uuid.UUID(str(given)))
    except ValueError as error:
        raise ValueError(f"requestId {show(given)} is no UUID") from error


def _fraction(given: Any) -> float:
    value = float(given)
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def _checked(operation: Operation) -> Operation:
    """``operation`` as its JSON reads; raises SearcherError for values that no operation has."""
    return operation_from_json(operation.to_json())
