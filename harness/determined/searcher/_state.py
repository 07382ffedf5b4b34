"""What a runner knows of the search, for the search method to look at."""

from __future__ import annotations

import enum
import uuid
from typing import Any


class ExitedReason(enum.Enum):
    """Why a trial ended before it had done all it was asked for.

    ``ERRORED``: its process failed more often than ``max_restarts``. ``USER_CANCELED``: it was killed, or
    its code asked to stop. ``INVALID_HP``: it called its hyperparameters invalid.
    """

    ERRORED = "ERRORED"
    USER_CANCELED = "USER_CANCELED"
    INVALID_HP = "INVALID_HP"


class SearcherState:
    """The facts of a search so far. The runner writes it, a search method only reads it.

    Attributes:
        trials_created: request ids of all trials that exist.
        trials_closed: of those that are over, whatever way they ended.
        failures: of those that ended in error.
        trial_progress: units of length that each trial has trained, as far as it has told; a trial
            with invalid hyperparameters is not in it.
        last_event_id: the last event that was handed to the method; 0: none.
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
        """Takes over everything from the JSON ``d``; what is missing there is as at the beginning."""

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
