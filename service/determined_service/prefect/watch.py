"""Watches our runs in Prefect: runs that a user cancels, and runs that are stuck.

* a run that somebody cancels: its task is killed, and the keeper looks at one that it keeps. Prefect shows
  such a run as Cancelling; one that waits (for slots, for an agent) it ends as Cancelled at once;
* a run that stays Cancelling or Pending for long: it gets the state that its task is in, or is left to the
  keeper; if we know of none, it is ended with the reason;
* a leg that a stock Prefect worker claimed, and whose run has ended without it: it is lost;
* a user's flow that was cancelled, and whose process did not live to kill the experiments that it had
  submitted (docs/automate/blocks.md): they are killed.
"""

from __future__ import annotations

import datetime
import logging
import time
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.lifecycle import experiments as experimenting
from determined_service.lifecycle import tasks as tasking
from determined_service.lifecycle.exits import ExitKind, LegExit
from determined_service.lifecycle.legs import end_leg
from determined_service.prefect.gateway import ENDED, Gateway, OpenRun, RunGone
from determined_service.prefect.mirrored_tasks import MirroredTask, find_tasks, mirrored_kinds
from determined_service.scheduling.explanation import why_queued
from determined_service.scheduling.reading import SnapshotReader
from determined_service.state import run_records, states
from determined_service.state.change import Change, changing, reader

logger = logging.getLogger(__name__)

LOOK_BACK = datetime.timedelta(days=1)
"""The span of the first look for cancelled runs: they may have been cancelled while no service ran."""
OVERLAP = datetime.timedelta(minutes=1)
"""By how much each later look overlaps the one before: clocks differ, and answers take time."""
STUCK_PASS_S = 15.0
CANCEL_GRACE_S = 10.0
"""Seconds that a user's cancelled flow has to kill its experiments itself."""
CLAIM_GRACE_S = 15.0
"""Seconds after the end of its run in which a claimed leg may still report its own end."""

_ANY_OPEN = sa.text(
    """
    SELECT WHERE EXISTS (SELECT FROM kept_runs WHERE NOT settled)
        OR EXISTS (SELECT FROM tasks WHERE kind = ANY(:kinds)
                   AND state NOT IN ('COMPLETED', 'CANCELED', 'ERROR'))
    """
)
# The keys of flows' submissions name the flow run (determined_flows.blocks.keys).
_OF_FLOWS = sa.text(
    """
    SELECT id AS experiment_id, NULL AS task_id, split_part(idempotency_key, '/', 2) AS run_id
    FROM experiments
    WHERE state IN ('ACTIVE', 'PAUSED')
      AND idempotency_key ~ '^prefect/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/'
    UNION ALL
    SELECT NULL, id, split_part(idempotency_key, '/', 2) FROM tasks
    WHERE state IN ('ACTIVE', 'PAUSED')
      AND idempotency_key ~ '^prefect/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/'
    LIMIT 5000
    """
)
_UNTOLD = sa.text("SELECT 1 FROM prefect_outbox WHERE entity = :entity LIMIT 1")
_CLAIMED = sa.text(
    """
    SELECT a.id, a.state, k.flow_run_id, coalesce(a.started_at, a.assigned_at) AS began
    FROM allocations a JOIN tasks k ON k.id = a.task_id
    WHERE a.state IN ('ASSIGNED', 'RUNNING') AND k.flow_run_id IS NOT NULL
      AND NOT EXISTS (SELECT FROM agents g WHERE g.id = a.agent_id)
      AND coalesce(a.started_at, a.assigned_at) < now() - make_interval(secs => :grace)
    ORDER BY a.id
    """
)


class PrefectWatch:
    """One per reconciler. ``stuck_run_s``: how long a run may be Cancelling or Pending."""

    def __init__(
        self, db: Database, gateway: Gateway, stuck_run_s: float, snapshots: SnapshotReader
    ) -> None:
        self._db = db
        self._gateway = gateway
        self._stuck_run_s = stuck_run_s
        self._snapshots = snapshots
        self._looked_at: datetime.datetime | None = None
        self._next_stuck_pass = 0.0

    async def look(self) -> None:
        """Looks once; may be repeated at any time."""
        now = datetime.datetime.now(datetime.UTC)
        since = now - LOOK_BACK if self._looked_at is None else self._looked_at - OVERLAP
        if await self._rows(_ANY_OPEN, kinds=mirrored_kinds()):
            cancelling = await self._gateway.cancelling()
            cancelled = await self._gateway.cancelled_since(since)
            async with changing(self._db) as change:
                if await run_records.look_soon(change.conn, [*cancelling, *cancelled]):
                    change.notify(topics.KEPT_RUNS)
            for owner in await self._owners(cancelling):
                async with changing(self._db) as change:
                    await owner.cancel(change)
            for owner in await self._owners(cancelled):
                if owner.state not in states.TERMINAL:
                    await self._stop_if_cancelled(owner)
        self._looked_at = now
        if time.monotonic() >= self._next_stuck_pass:
            await self._settle_stuck(now)
            await self._end_claims(now)
            await self._end_with_flows(now)
            self._next_stuck_pass = time.monotonic() + STUCK_PASS_S

    async def _rows(self, statement: sa.Executable, **values: Any) -> list[sa.Row[Any]]:
        async with reader(self._db).connect() as conn:
            return list(await conn.execute(statement, values))

    async def _owners(self, run_ids: list[UUID]) -> list[MirroredTask]:
        async with reader(self._db).connect() as conn:
            return await find_tasks(conn, run_ids)

    async def _stop_if_cancelled(self, owner: MirroredTask) -> None:
        """Stop what lives although its run is Cancelled, unless Prefect has not been told its state yet."""
        # The order matters: a trial that was continued has a word for Prefect waiting, or Prefect
        # has heard it and the run is Cancelled no more.
        if await self._rows(_UNTOLD, entity=owner.entity):
            return
        try:
            run = await self._gateway.read_state(owner.run_id)
        except RunGone:
            return
        if run.type != "CANCELLED":
            return
        logger.info("%s: its run was cancelled in Prefect", owner.entity)
        async with changing(self._db) as change:
            await owner.hold(change)
            untold = await change.conn.execute(_UNTOLD, {"entity": owner.entity})
            if untold.first() is None:
                await owner.cancel(change)

    async def _settle_stuck(self, now: datetime.datetime) -> None:
        before = now - datetime.timedelta(seconds=self._stuck_run_s)
        # Prefect cancels the runs of an experiment's trials together with its own, also those that have just
        # ended: tasks that are over here can be reported soon.
        soon = now - datetime.timedelta(seconds=min(self._stuck_run_s, CANCEL_GRACE_S))
        unfinished = [run for run in await self._gateway.unfinished() if run.since < soon]
        owners = await self._owners([run.id for run in unfinished])
        known = {owner.run_id: owner for owner in owners}
        async with changing(self._db) as change:
            kept = await run_records.unsettle(change.conn, [run.id for run in unfinished])
        for run in unfinished:
            if run.id in kept:
                continue
            owner = known.get(run.id)
            if run.since >= before and (owner is None or owner.state not in states.TERMINAL):
                continue
            if owner is None:
                await self._end_unknown(run, now)
            elif not await self._rows(_UNTOLD, entity=owner.entity):
                await self._tell_again(owner, run)

    async def _end_unknown(self, run: OpenRun, now: datetime.datetime) -> None:
        """End a run of one of our deployments that the service does not know: no process will continue it."""
        seconds = (now - run.since).total_seconds()
        if not run.is_ours:
            return
        if run.type == "CANCELLING":
            end, name = "CANCELLED", "Cancelled"
            message = f"the run was cancelled in Prefect, but its process was not ended for {seconds:.0f} s"
        else:
            end, name = "CRASHED", "Crashed"
            message = f"the run was {run.name} for {seconds:.0f} s, but no process began it"
        logger.warning("run %s is stuck: %s", run.id, message)
        try:
            await self._gateway.set_state(run.id, end, name, message)
        except RunGone:
            return

    async def _tell_again(self, owner: MirroredTask, run: OpenRun) -> None:
        async with changing(self._db) as change:
            # Held, so that a newer state does not overtake this one.
            await owner.hold(change)
            if owner.state in states.TERMINAL:
                logger.warning("%s has ended, but its run is %s", owner.entity, run.name)
                owner.tell_end(change)
            elif run.type == "PENDING":
                await owner.tell_present(change, await self._why_queued(change, owner))

    async def _why_queued(self, change: Change, owner: MirroredTask) -> str:
        live = await self._snapshots.live(change.conn)
        waiting = (row for row in live.rows.values() if row.state == states.REQUESTED)
        mine = next((row.id for row in waiting if row.task_id == owner.id), None)
        if mine is None:
            return ""
        snapshot = await self._snapshots.read(change.conn, live)
        return why_queued(self._snapshots.schedulers, snapshot, [mine])[mine]

    async def _end_with_flows(self, now: datetime.datetime) -> None:
        """Kill what flows have submitted that were cancelled. Flows of another Prefect are not found here."""
        submitted: dict[UUID, list[sa.Row[Any]]] = {}
        for row in await self._rows(_OF_FLOWS):
            submitted.setdefault(UUID(row.run_id), []).append(row)
        if not submitted:
            return
        before = now - datetime.timedelta(seconds=CANCEL_GRACE_S)
        for run_id in await self._gateway.cancelled_among(list(submitted), before):
            for row in submitted[run_id]:
                what = (
                    f"experiment {row.experiment_id}"
                    if row.experiment_id
                    else f"task {row.task_id}"
                )
                words = "%s: the flow that submitted it was cancelled in Prefect (run %s)"
                logger.info(words, what, run_id)
                async with changing(self._db) as change:
                    if row.experiment_id:
                        await experimenting.kill(change, row.experiment_id)
                    else:
                        await tasking.kill(change, row.task_id)

    async def _end_claims(self, now: datetime.datetime) -> None:
        """Legs run by Prefect's own workers, which send us no heartbeat."""
        for row in await self._rows(_CLAIMED, grace=CLAIM_GRACE_S):
            try:
                run = await self._gateway.read_state(row.flow_run_id)
            except RunGone:
                reason = "its run was deleted in Prefect"
            else:
                ended_s = (now - run.since).total_seconds()
                if run.type not in ENDED or run.since < row.began or ended_s < CLAIM_GRACE_S:
                    continue
                words = f": {run.message}" if run.message else ""
                reason = f"its run in Prefect is {run.name}{words}"
            async with changing(self._db) as change:
                await end_leg(
                    change,
                    row.id,
                    LegExit(ExitKind.INFRASTRUCTURE, reason=reason),
                    only_in=row.state,
                )
