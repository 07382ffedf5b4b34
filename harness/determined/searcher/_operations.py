"""What a search method may ask for, and its form in the service's JSON."""

from __future__ import annotations

import abc
import json
import math
import uuid
from typing import Any

from determined.experimental._checkpoint import Checkpoint


class Operation(abc.ABC):
    """One thing that a search method asks for."""

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The operation as the service takes it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({json.dumps(self.to_json())})"


class Create(Operation):
    """Make a trial with these hyperparameters. It trains when a :class:`ValidateAfter` says how far.

    Args:
        request_id: a new UUID, the trial's name from now on.
        hparams: what the trial reads as its hyperparameters; must be JSON.
        checkpoint: a checkpoint (or its UUID) for the trial to start from; None: from nothing.
        seed: the trial's seed; None: 42, as for every custom search.

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
        # Text, as published programs know it; and no later change to the dict reaches the trial.
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
    """Train the trial to ``length`` units in all (not: by so many more), then report its metric.

    The unit is that of ``searcher.unit`` in the configuration. A trial has one such target at a time.
    Raises ValueError for a length that is not a whole number of at least 1.
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
    """Nothing more will be asked of the trial: it ends when it has done what it was asked for."""

    def __init__(self, request_id: uuid.UUID) -> None:
        self.request_id = _uuid(request_id)

    def to_json(self) -> dict[str, Any]:
        return {"closeTrial": {"requestId": str(self.request_id)}}


class Progress(Operation):
    """How far the search is, 0..1; what is no number counts as 0."""

    def __init__(self, progress: float) -> None:
        self.progress = progress

    def to_json(self) -> dict[str, Any]:
        value = float(self.progress)
        return {"setSearcherProgress": {"progress": value if math.isfinite(value) else 0.0}}


class Shutdown(Operation):
    """The search is over: in error if ``failure``, else canceled if ``cancel``, else completed.

    Trials that still train are stopped. A custom search ends by nothing but this.
    """

    def __init__(self, cancel: bool = False, failure: bool = False) -> None:
        self.cancel = cancel
        self.failure = failure

    def to_json(self) -> dict[str, Any]:
        return {"shutDown": {"cancel": bool(self.cancel), "failure": bool(self.failure)}}


class SavedOperation(Operation):
    """An operation of an earlier process, to be sent again as it was."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def to_json(self) -> dict[str, Any]:
        return self._data


def _uuid(given: Any) -> uuid.UUID:
    return given if isinstance(given, uuid.UUID) else uuid.UUID(str(given))
