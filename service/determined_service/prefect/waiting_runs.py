"""Tells Prefect why runs wait for slots: the message of their state AwaitingSlots.

Each message costs Prefect a state of the run, so few are written: none for what waits a short while, one when
a request has waited for a while, and another one when the reason is of another kind. After a restart of the
service each is told once more.

A run that is in another state by then is left alone: somebody made it Scheduled, and one of Prefect's own
workers may be about to run it. AwaitingSlots, which is Scheduled for a year far away, would stop that worker.
"""

from __future__ import annotations

import time
from uuid import UUID

import sqlalchemy as sa

from determined.common.wire.prefect import AWAITING_SLOTS
from determined_service.base.db import Database
from determined_service.lifecycle.kinds.table import KINDS
from determined_service.prefect.gateway import Gateway, RunGone
from determined_service.scheduling.queue import Queue
from determined_service.scheduling.wording import in_short
from determined_service.state import prefect_states
from determined_service.state.change import changing, reader

PATIENCE_S = 5.0
"""How long a request has waited before Prefect is told why."""
PASS_S = 10.0
MOST = 20
"""How many messages one pass writes; the others come later, in the order of service."""

_WAITING = sa.text(
    "SELECT a.id, k.flow_run_id FROM allocations a JOIN tasks k ON k.id = a.task_id "
    "WHERE a.state = 'REQUESTED' AND a.requested_at < now() - make_interval(secs => :patience)"
)
# Locked: what is placed meanwhile must not be said to wait.
_LOCK = sa.text(
    """
    SELECT a.id, a.task_id, k.kind FROM allocations a JOIN tasks k ON k.id = a.task_id
    WHERE a.id = ANY(:ids) AND a.state = 'REQUESTED'
    ORDER BY a.id FOR NO KEY UPDATE OF a
    """
)


class WaitingRuns:
    """One per cluster (the leader's). ``queue``: where reasons are read."""

    def __init__(
        self,
        db: Database,
        gateway: Gateway,
        queue: Queue,
        *,
        patience_s: float = PATIENCE_S,
        pass_s: float = PASS_S,
    ) -> None:
        self._db = db
        self._gateway = gateway
        self._queue = queue
        self._patience_s = patience_s
        self._pass_s = pass_s
        self._next_pass = 0.0
        # By allocation, the kind of the reason that was told last.
        self._told: dict[str, type[object]] = {}

    async def look(self) -> None:
        """Writes what has become due; may be called as often as one likes."""
        if time.monotonic() < self._next_pass:
            return
        self._next_pass = time.monotonic() + self._pass_s
        async with reader(self._db).connect() as conn:
            found = await conn.execute(_WAITING, {"patience": self._patience_s})
            run_of: dict[str, UUID | None] = {row.id: row.flow_run_id for row in found}
        self._told = {key: kind for key, kind in self._told.items() if key in run_of}
        if not run_of:
            return
        seen = await self._queue.look()
        due = [
            one
            for one in seen.decision.waiting
            if one.request.id in run_of and self._told.get(one.request.id) is not type(one.reason)
        ][:MOST]
        due = [one for one in due if await self._is_awaiting(run_of[one.request.id])]
        if not due:
            return
        async with changing(self._db) as change:
            rows = await change.conn.execute(_LOCK, {"ids": [one.request.id for one in due]})
            task_of = {row.id: row.task_id for row in rows if KINDS[row.kind].mirrored}
            for one in due:
                if (task_id := task_of.get(one.request.id)) is not None:
                    job = one.request.id if one.request.group is None else one.request.group
                    message = in_short(one, seen.ahead.get(job, 0))
                    prefect_states.awaiting_slots(change, task_id, message)
        self._told |= {one.request.id: type(one.reason) for one in due}

    async def _is_awaiting(self, run_id: UUID | None) -> bool:
        """Whether the run may be told: it waits, or does not exist yet."""
        if run_id is None:
            return True
        try:
            return (await self._gateway.read_state(run_id)).name == AWAITING_SLOTS
        except RunGone:
            return False
