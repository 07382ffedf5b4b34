"""The operations that a search method may request, and their JSON."""

from __future__ import annotations

import abc
import json
import math
import uuid
from typing import Any

from determined.experimental._checkpoint import Checkpoint


class Operation(abc.ABC):
    """A request of a search method."""

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The operation in the form that the service reads."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({json.dumps(self.to_json())})"


class Create(Operation):
    """Create a trial with these hyperparameters. It starts to train with a :class:`ValidateAfter`.

    Args:
        request_id: a new UUID, by which the trial is named from now on.
        hparams: the trial's hyperparameters; must be JSON.
        checkpoint: the checkpoint (or its UUID) from which the trial starts; None for no checkpoint.
        seed: the trial's seed; None for 42, the default of every custom search.

    Raises ValueError, and TypeError for hyperparameters that JSON cannot hold.
    """

    def __init__(
        self,
        request_id: uuid.UUID,
        hparams: dict[str, Any],
        checkpoint: Checkpoint | str | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self.request_id = _uuid(request_id)
        if not isinstance(hparams, dict):
            raise TypeError(f"Create: hparams must be a dict, found {hparams!r}")
        # Text, as published programs expect it, so that later changes of the dict do not reach the trial.
        self.hparams = json.dumps(hparams, allow_nan=False)
        self.checkpoint = checkpoint
        self.seed = seed

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"requestId": str(self.request_id), "hyperparams": self.hparams}
        if self.checkpoint is not None:
            fields["checkpoint"] = str(getattr(self.checkpoint, "uuid", self.checkpoint))
        if self.seed is not None:
            fields["seed"] = int(self.seed)
        return {"createTrial": fields}


class ValidateAfter(Operation):
    """Train the trial until it has trained for ``length`` units in total, then report its metric.

    The unit is ``searcher.unit`` of the configuration. A trial has one such target at a time. Raises
    ValueError for a length that is not a whole number of at least 1.
    """

    def __init__(self, request_id: uuid.UUID, length: int) -> None:
        self.request_id = _uuid(request_id)
        if length != int(length) or length < 1:
            raise ValueError(
                f"ValidateAfter: length must be a whole number of at least 1, found {length!r}"
            )
        self.length = int(length)

    def to_json(self) -> dict[str, Any]:
        # A 64-bit number is a string in Determined's JSON.
        target = {"requestId": str(self.request_id), "length": str(self.length)}
        return {"trialOperation": {"validateAfter": target}}


class Close(Operation):
    """The last operation of a trial, which ends once it has reached its target."""

    def __init__(self, request_id: uuid.UUID) -> None:
        self.request_id = _uuid(request_id)

    def to_json(self) -> dict[str, Any]:
        return {"closeTrial": {"requestId": str(self.request_id)}}


class Progress(Operation):
    """The progress of the search, from 0 to 1; a value that is not a number counts as 0."""

    def __init__(self, progress: float) -> None:
        self.progress = progress

    def to_json(self) -> dict[str, Any]:
        value = float(self.progress)
        return {"setSearcherProgress": {"progress": value if math.isfinite(value) else 0.0}}


class Shutdown(Operation):
    """End the search: in error if ``failure``, else canceled if ``cancel``, else completed.

    Trials that still train are stopped. Only this operation ends a custom search.
    """

    def __init__(self, cancel: bool = False, failure: bool = False) -> None:
        self.cancel = cancel
        self.failure = failure

    def to_json(self) -> dict[str, Any]:
        return {"shutDown": {"cancel": bool(self.cancel), "failure": bool(self.failure)}}


class SavedOperation(Operation):
    """An operation of an earlier process, which is sent again unchanged."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def to_json(self) -> dict[str, Any]:
        return self._data


def _uuid(given: Any) -> uuid.UUID:
    return given if isinstance(given, uuid.UUID) else uuid.UUID(str(given))
