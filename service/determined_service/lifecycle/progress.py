"""Limits how often a trial's progress becomes an event of its search."""

from __future__ import annotations

import time

EVENT_S = 2.0
"""Least time between two progress events of one trial in the searcher's inbox, in seconds."""


class ProgressEvents:
    """Remembers when each trial's last event was. One per process."""

    def __init__(self) -> None:
        self._told: dict[int, float] = {}

    def is_due(self, trial_id: int) -> bool:
        """True if the search should get the trial's progress now; if so, the time starts anew."""
        now = time.monotonic()
        if now - self._told.get(trial_id, -EVENT_S) < EVENT_S:
            return False
        for old in [key for key, at in self._told.items() if now - at > EVENT_S]:
            del self._told[old]
        self._told[trial_id] = now
        return True
