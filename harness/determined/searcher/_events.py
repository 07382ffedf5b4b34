"""The events of a custom search, from the service's JSON."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from typing import Any

from determined.searcher._state import ExitedReason

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

# A search method does not distinguish a killed trial from one whose code asked to stop.
_REASONS = {
    "EXITED_REASON_UNSPECIFIED": ExitedReason.ERRORED,
    "EXITED_REASON_INVALID_HP": ExitedReason.INVALID_HP,
    "EXITED_REASON_INIT_INVALID_HP": ExitedReason.INVALID_HP,
    "EXITED_REASON_USER_REQUESTED_STOP": ExitedReason.USER_CANCELED,
    "EXITED_REASON_USER_CANCELED": ExitedReason.USER_CANCELED,
}


@dataclass(frozen=True, slots=True)
class SearcherEvent:
    """One event: ``kind`` is its key in JSON (``trialCreated``, …), ``fields`` the value of the key."""

    id: int
    kind: str
    fields: dict[str, Any]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SearcherEvent:
        kind = next((key for key, value in data.items() if key != "id" and value is not None), "")
        return cls(int(data["id"]), kind, data.get(kind) or {})

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, self.kind: self.fields}

    def __str__(self) -> str:
        given = ", ".join(f"{key}={value}" for key, value in self.fields.items())
        return f"{self.id}: {self.kind}({given})"

    @property
    def request_id(self) -> uuid.UUID:
        return uuid.UUID(self.fields["requestId"])

    @property
    def metric(self) -> Any:
        """The metric as the trial reported it."""
        return _decoded(self.fields["metric"])

    @property
    def exited_reason(self) -> ExitedReason:
        return _REASONS.get(self.fields["exitedReason"], ExitedReason.ERRORED)

    @property
    def experiment_state(self) -> str:
        """``PAUSED``, ``COMPLETED``, …"""
        return str(self.fields["experimentState"]).removeprefix("STATE_")


def _decoded(value: Any) -> Any:
    """Turns text into NaN and infinities, which JSON cannot express as numbers."""
    if isinstance(value, str):
        return _NAMES.get(value, value)
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    return value
