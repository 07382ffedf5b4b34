"""An experiment's place in the queue of its resource pool, as ``v1JobSummary``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from determined_service.base.db import Database, seeing
from determined_service.scheduling.reading import SnapshotReader
from determined_service.scheduling.scheduler import Decision
from determined_service.scheduling.snapshot import Snapshot
from determined_service.state.change import reader

KEPT = 10
"""A decision answers readers of the queue for this many times as long as it took."""


@dataclass(frozen=True)
class QueueView:
    """A snapshot, and what the schedulers decide for it."""

    snapshot: Snapshot
    decision: Decision

    @cached_property
    def ahead(self) -> dict[int | str, int]:
        """See :meth:`~.scheduler.Decision.ahead_by_job`."""
        return self.decision.ahead_by_job()


class Queue:
    """The schedulers' decision, for readers who ask for a place in the queue.

    Many may ask often while thousands of requests wait, so a decision is kept for a while that
    grows with its cost: a tenth of a second for one that took 10 ms.
    """

    def __init__(self, db: Database, snapshots: SnapshotReader) -> None:
        self._db = db
        self._snapshots = snapshots
        self._lock = asyncio.Lock()
        self._seen = QueueView(Snapshot((), ()), Decision((), ()))
        self._kept_until = 0.0

    async def look(self) -> QueueView:
        """What the schedulers decide, or have decided a moment ago."""
        async with self._lock:
            began = time.monotonic()
            if began >= self._kept_until:
                # It is kept for all readers, so it is of everything.
                with seeing(None):
                    async with reader(self._db).connect() as conn:
                        snapshot = await self._snapshots.read(conn)
                decision = await self._snapshots.schedulers.decide_beside(snapshot)
                self._seen = QueueView(snapshot, decision)
                ended = time.monotonic()
                self._kept_until = ended + KEPT * (ended - began)
            return self._seen

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
            ahead = (await self.look()).ahead.get(experiment["id"], 0)
            return {"state": "STATE_QUEUED", "jobsAhead": ahead}
        return None
