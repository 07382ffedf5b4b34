"""An experiment's place in the queue of its resource pool, as ``v1JobSummary``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from determined_service.base.db import Database
from determined_service.scheduling.placement import SCHEDULER, read_snapshot, waiting_requests
from determined_service.scheduling.scheduler import Decision
from determined_service.state.change import reader

KEPT = 10
"""A decision answers readers of the queue for this many times as long as it took."""


class Queue:
    """The scheduler's decision, for readers who ask for a place in the queue.

    Many may ask often while thousands of requests wait, so a decision is kept for a while that
    grows with its cost: a tenth of a second for one that took 10 ms.
    """

    def __init__(self, db: Database, agent_timeout_s: float) -> None:
        self._db = db
        self._agent_timeout_s = agent_timeout_s
        self._lock = asyncio.Lock()
        self._decision = Decision((), ())
        self._kept_until = 0.0

    async def decision(self) -> Decision:
        """What the scheduler decides, or has decided a moment ago."""
        async with self._lock:
            began = time.monotonic()
            if began >= self._kept_until:
                async with reader(self._db).connect() as conn:
                    waiting = await waiting_requests(conn)
                    snapshot = await read_snapshot(conn, waiting, self._agent_timeout_s)
                self._decision = SCHEDULER.decide(snapshot)
                ended = time.monotonic()
                self._kept_until = ended + KEPT * (ended - began)
            return self._decision

    async def job_summary(self, experiment: Mapping[str, Any]) -> dict[str, Any] | None:
        """``state`` and ``jobsAhead`` of ``experiment`` (``v1Experiment``).

        ``jobsAhead`` counts the experiments of the same pool with a request in line before this
        one's first; it is 0 once a trial has slots, and while no trial wants any. None for an
        experiment that takes no part: it is unmanaged, paused, or has ended.
        """
        shown = experiment["state"]
        if experiment["unmanaged"]:
            return None
        if shown in ("STATE_STARTING", "STATE_RUNNING") or shown.startswith("STATE_STOPPING"):
            return {"state": "STATE_SCHEDULED", "jobsAhead": 0}
        if shown == "STATE_ACTIVE":
            return {"state": "STATE_QUEUED", "jobsAhead": 0}
        if shown == "STATE_QUEUED":
            ahead = (await self.decision()).groups_ahead(experiment["id"])
            return {"state": "STATE_QUEUED", "jobsAhead": ahead}
        return None
