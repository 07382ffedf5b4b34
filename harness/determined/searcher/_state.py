"""The state of a search, which the runner writes and the search method reads."""

from __future__ import annotations

import enum
import uuid
from typing import Any


class ExitedReason(enum.Enum):
    """The reason for which a trial ended before its target.

    ``ERRORED``: its process failed more often than ``max_restarts``. ``USER_CANCELED``: it was killed, or
    its code asked to stop. ``INVALID_HP``: its code reported that its hyperparameters are invalid.
    """

    ERRORED = "ERRORED"
    USER_CANCELED = "USER_CANCELED"
    INVALID_HP = "INVALID_HP"


class SearcherState:
    """The facts of a search so far. The runner writes it, a search method only reads it.

    Attributes:
        trials_created: request ids of all trials that exist.
        trials_closed: request ids of the trials that have ended, in any way.
        failures: request ids of the trials that ended in error.
        trial_progress: the units of length that each trial has reported; a trial with invalid
            hyperparameters is not in it.
        last_event_id: the last event that the method got; 0 for none.
        experiment_id: the experiment of the search; None before it is created.
        experiment_completed, experiment_failed: how the experiment has ended; both False until then,
            and after a cancellation.
    """

    def __init__(self) -> None:
        self.failures: set[uuid.UUID] = set()
        self.trial_progress: dict[uuid.UUID, float] = {}
        self.trials_closed: set[uuid.UUID] = set()
        self.trials_created: set[uuid.UUID] = set()
        self.last_event_id = 0
        self.experiment_id: int | None = None
        self.experiment_completed = False
        self.experiment_failed = False

    def to_dict(self) -> dict[str, Any]:
        """JSON, which :meth:`from_dict` reads."""
        return {
            "failures": sorted(map(str, self.failures)),
            "trialProgress": {str(key): value for key, value in self.trial_progress.items()},
            "trialsClosed": sorted(map(str, self.trials_closed)),
            "trialsCreated": sorted(map(str, self.trials_created)),
            "lastEventId": self.last_event_id,
            "experimentId": self.experiment_id,
            "experimentCompleted": self.experiment_completed,
            "experimentFailed": self.experiment_failed,
        }

    def from_dict(self, d: dict[str, Any]) -> None:
        """Sets all attributes from the JSON ``d``; those that it lacks get their first values."""

        def ids(key: str) -> set[uuid.UUID]:
            return {uuid.UUID(text) for text in d.get(key, [])}

        self.failures = ids("failures")
        self.trial_progress = {
            uuid.UUID(key): value for key, value in d.get("trialProgress", {}).items()
        }
        self.trials_closed = ids("trialsClosed")
        self.trials_created = ids("trialsCreated")
        self.last_event_id = d.get("lastEventId", 0)
        self.experiment_id = d.get("experimentId")
        self.experiment_completed = d.get("experimentCompleted", False)
        self.experiment_failed = d.get("experimentFailed", False)
