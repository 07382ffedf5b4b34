"""Tells Prefect why runs wait for slots: in the name of their state, and with the pool in its message.

Each reason costs Prefect a state of the run, so few are written: none for what waits a short while, one when
a request has waited for a while, and others when the reason has become another one in substance
(:func:`substance`), the more seldom the more there were. After a restart of the service each is told once
more.

A run that is in another state by then is left alone: a user made it Scheduled, and one of Prefect's own
workers may be about to run it. AwaitingSlots, which is Scheduled for a year far away, would stop that worker.
The mirror looks once more when it tells the reason, which may be long after: the run may not even exist yet.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from determined.common.wire.prefect import is_awaiting_slots
from determined_service.base.db import Database
from determined_service.lifecycle.kinds.table import KINDS
from determined_service.prefect.gateway import Gateway, RunGone
from determined_service.scheduling.queue import Queue, QueueView
from determined_service.scheduling.reasons import Behind, Fragmented, NotWhole, TooFewFree, Unplaced
from determined_service.scheduling.scheduler import Waiting
from determined_service.scheduling.wording import in_short
from determined_service.state import prefect_states
from determined_service.state.change import changing, reader

PATIENCE_S = 5.0
"""Seconds that a request has waited before Prefect gets the reason."""
PASS_S = 10.0
MOST = 20
"""The number of reasons that one pass writes; the others come later, in the order of service."""
SELDOM_S = 60.0
"""Seconds after which a run's reason may be out of date, as far as :data:`MOST` allows."""
EXACT = 4
"""Up to this number of jobs ahead each change is written; above it, only each halving."""

_WAITING = sa.text(
    "SELECT a.id, k.flow_run_id FROM allocations a JOIN tasks k ON k.id = a.task_id "
    "WHERE a.state = 'REQUESTED' AND a.requested_at < now() - make_interval(secs => :patience)"
)
# Locked, so that a request that is placed meanwhile is not reported as waiting.
_LOCK = sa.text(
    """
    SELECT a.id, a.task_id, k.kind FROM allocations a JOIN tasks k ON k.id = a.task_id
    WHERE a.id = ANY(:ids) AND a.state = 'REQUESTED'
    ORDER BY a.id FOR NO KEY UPDATE OF a
    """
)


def substance(waiting: Waiting, jobs_ahead: int) -> object:
    """The part of a reason that must change before Prefect is told again.

    The kind of the reason; for requests first in line, which are few, its numbers; for later requests,
    roughly the number of jobs ahead.
    """
    reason = waiting.reason
    ahead = jobs_ahead if jobs_ahead <= EXACT else EXACT + jobs_ahead.bit_length()
    match reason:
        case TooFewFree() | Fragmented() | NotWhole():
            return reason, ahead
        case Behind():
            return Behind, ahead
        case Unplaced(words, _):
            return Unplaced, words
        case _:
            return type(reason)


@dataclass(slots=True)
class Told:
    """The last reason of a request that Prefect got, how often reasons were sent by then, and when."""

    substance: object
    times: int
    at: float


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
        # By allocation.
        self._told: dict[str, Told] = {}
        # Runs that a user has scheduled.
        self._left: set[str] = set()

    async def look(self) -> None:
        """Write the reasons that are due; may be called at any time."""
        now = time.monotonic()
        if now < self._next_pass:
            return
        self._next_pass = now + self._pass_s
        async with reader(self._db).connect() as conn:
            found = await conn.execute(_WAITING, {"patience": self._patience_s})
            run_of: dict[str, UUID | None] = {row.id: row.flow_run_id for row in found}
        self._told = {key: told for key, told in self._told.items() if key in run_of}
        self._left &= run_of.keys()
        if not run_of:
            return
        seen = await self._queue.look()
        due = [
            one
            for one in seen.decision.waiting
            if one.request.id in run_of and self._is_due(one, _ahead(seen, one), now)
        ][:MOST]
        due = [one for one in due if await self._is_awaiting(one.request.id, run_of)]
        if not due:
            return
        async with changing(self._db) as change:
            rows = await change.conn.execute(_LOCK, {"ids": [one.request.id for one in due]})
            task_of = {row.id: row.task_id for row in rows if KINDS[row.kind].mirrored}
            for one in due:
                if (task_id := task_of.get(one.request.id)) is not None:
                    short = in_short(one, _ahead(seen, one))
                    message = f"resource pool {one.request.pool!r}: {short}"
                    prefect_states.show_reason(change, task_id, message, short)
        for one in due:
            told = self._told.get(one.request.id)
            times = 1 if told is None else told.times + 1
            self._told[one.request.id] = Told(substance(one, _ahead(seen, one)), times, now)

    def _is_due(self, one: Waiting, jobs_ahead: int, now: float) -> bool:
        told = self._told.get(one.request.id)
        if told is None:
            return True
        if told.substance == substance(one, jobs_ahead):
            return False
        return now >= told.at + min(self._pass_s * told.times, SELDOM_S)

    async def _is_awaiting(self, key: str, run_of: dict[str, UUID | None]) -> bool:
        """True if the run of the request may get the reason: it waits, or does not exist yet."""
        run_id = run_of[key]
        if run_id is None:
            return True
        try:
            state = await self._gateway.read_state(run_id)
            if is_awaiting_slots(state.name):
                return True
            if state.type == "SCHEDULED" and key not in self._left:
                await self._gateway.let_workers_take(run_id)
                self._left.add(key)
        except RunGone:
            pass
        return False


def _ahead(seen: QueueView, one: Waiting) -> int:
    """The number of jobs that are served before the request's."""
    job = one.request.id if one.request.group is None else one.request.group
    return seen.ahead.get(job, 0)
