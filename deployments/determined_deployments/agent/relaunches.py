"""Decides which flow runs start again at once when their process is killed, without telling Prefect."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

from determined_deployments.agent.launchers.base import Exit

# A run that was killed so often in a row within this time of its start is left to the service, which
# tries more slowly and gives up at last.
RELAUNCHES = 5
SHORT_LIFE_SECONDS = 1.0


class Relaunches:
    """Counts only runs noted by :meth:`started`, which lose nothing by a new start.

    ``clock``: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lives: dict[UUID, tuple[float, int]] = {}
        """When the process was started last, and how many short lives in a row came before."""

    def started(self, flow_run_id: UUID) -> None:
        _, short_lives = self._lives.get(flow_run_id, (0.0, 0))
        self._lives[flow_run_id] = (self._clock(), short_lives)

    def is_due(self, flow_run_id: UUID, ended: Exit) -> bool:
        """True if the run must be started again after this end of its job. If not, it is
        forgotten."""
        life = self._lives.pop(flow_run_id, None)
        if life is None or ended.signal is None:
            return False
        began, short_lives = life
        short_lives = short_lives + 1 if self._clock() - began < SHORT_LIFE_SECONDS else 0
        if short_lives >= RELAUNCHES:
            return False
        self._lives[flow_run_id] = (began, short_lives)
        return True
