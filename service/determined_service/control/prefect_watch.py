"""What people do to our runs in Prefect, and runs that are stuck there.

* a run that somebody cancels: its experiment is cancelled, or its trial killed. Prefect shows such a run
  as Cancelling; one that waits (for slots, for an agent) it ends as Cancelled at once;
* a run that stays Cancelling or Pending for long: it gets the state that its trial or experiment is
  in; if we know of none, it is ended with the reason;
* a leg that a stock Prefect worker claimed, and whose run has ended without it: it is lost.
"""

from __future__ import annotations

import datetime
import logging
import time
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from determined_registry.tables import experiments
from determined_service.control import experiments as experimenting
from determined_service.control import lifecycle as states
from determined_service.control import prefect_states
from determined_service.control import trials as trialing
from determined_service.control.change import Change, changing, reader
from determined_service.control.exits import ExitKind
from determined_service.control.legs import Exit, end_leg
from determined_service.control.prefect_gateway import ENDED, Gateway, OpenRun, RunGone
from determined_service.db import Database

logger = logging.getLogger(__name__)

LOOK_BACK = datetime.timedelta(days=1)
"""How far back the first look for cancelled runs goes: they were cancelled while no service ran."""
OVERLAP = datetime.timedelta(minutes=1)
"""By how much each later look overlaps the one before: clocks differ, and answers take time."""
STUCK_PASS_S = 15.0
CLAIM_GRACE_S = 15.0
"""How long after the end of its run a claimed leg may still report its own."""

_BY_RUN = sa.text(
    """
    SELECT 'trial' AS kind, id, id AS trial_id, experiment_id, state, reason, flow_run_id
    FROM trials WHERE flow_run_id = ANY(:ids)
    UNION ALL
    SELECT 'experiment', id, NULL, id, state, reason, flow_run_id
    FROM experiments WHERE flow_run_id = ANY(:ids)
    """
)
_ANY_OPEN = sa.select(experiments.c.id).where(experiments.c.state.not_in(states.TERMINAL)).limit(1)
_UNTOLD = sa.text("SELECT 1 FROM prefect_outbox WHERE entity = :entity LIMIT 1")
_CLAIMED = sa.text(
    """
    SELECT a.id, a.state, t.flow_run_id, coalesce(a.started_at, a.assigned_at) AS began
    FROM allocations a JOIN trials t ON t.id = a.trial_id
    WHERE a.state IN ('ASSIGNED', 'RUNNING') AND t.flow_run_id IS NOT NULL
      AND NOT EXISTS (SELECT FROM agents g WHERE g.id = a.agent_id)
      AND coalesce(a.started_at, a.assigned_at) < now() - make_interval(secs => :grace)
    ORDER BY a.id
    """
)


class PrefectWatch:
    """One per reconciler. ``stuck_run_s``: how long a run may be Cancelling or Pending."""

    def __init__(self, db: Database, gateway: Gateway, stuck_run_s: float) -> None:
        self._db = db
        self._gateway = gateway
        self._stuck_run_s = stuck_run_s
        self._looked_at: datetime.datetime | None = None
        self._next_stuck_pass = 0.0

    async def look(self) -> None:
        """Looks once; may be repeated at any time."""
        now = datetime.datetime.now(datetime.UTC)
        since = now - LOOK_BACK if self._looked_at is None else self._looked_at - OVERLAP
        if await self._rows(_ANY_OPEN):
            for row in await self._known(await self._gateway.cancelling()):
                await self._stop(row)
            for row in await self._known(await self._gateway.cancelled_since(since)):
                if row.state not in states.TERMINAL:
                    await self._stop_if_cancelled(row)
        self._looked_at = now
        if time.monotonic() >= self._next_stuck_pass:
            await self._settle_stuck(now)
            await self._end_claims(now)
            self._next_stuck_pass = time.monotonic() + STUCK_PASS_S

    async def _rows(self, statement: sa.Executable, **values: Any) -> list[sa.Row[Any]]:
        async with reader(self._db).connect() as conn:
            return list(await conn.execute(statement, values))

    async def _known(self, ids: list[UUID]) -> list[sa.Row[Any]]:
        return await self._rows(_BY_RUN, ids=ids) if ids else []

    async def _stop(self, row: sa.Row[Any]) -> None:
        async with changing(self._db) as change:
            if row.kind == "trial" and row.state in states.TERMINAL:
                # It ended while somebody cancelled it in the UI: say so once more.
                entity = prefect_states.trial_entity(row.id)
                prefect_states.ended(change, entity, row.state, row.reason)
            else:
                await _cancel(change, row)

    async def _stop_if_cancelled(self, row: sa.Row[Any]) -> None:
        """Stops what lives although its run is Cancelled, unless Prefect has only not been told."""
        entity = f"{row.kind}:{row.id}"
        # The order matters: a trial that was continued has a word for Prefect waiting, or Prefect
        # has heard it and the run is Cancelled no more.
        if await self._rows(_UNTOLD, entity=entity):
            return
        try:
            run = await self._gateway.read_state(row.flow_run_id)
        except RunGone:
            return
        if run.type != "CANCELLED":
            return
        logger.info("%s: its run was cancelled in Prefect", entity)
        async with changing(self._db) as change:
            await experimenting.lock_experiment(change, row.experiment_id)
            untold = await change.conn.execute(_UNTOLD, {"entity": entity})
            if untold.first() is None:
                await _cancel(change, row)

    async def _settle_stuck(self, now: datetime.datetime) -> None:
        before = now - datetime.timedelta(seconds=self._stuck_run_s)
        stuck = [run for run in await self._gateway.unfinished() if run.since < before]
        known = {row.flow_run_id: row for row in await self._known([run.id for run in stuck])}
        for run in stuck:
            row = known.get(run.id)
            if row is None:
                await self._end_unknown(run, now)
            elif not await self._rows(_UNTOLD, entity=f"{row.kind}:{row.id}"):
                await self._tell_again(row, run)

    async def _end_unknown(self, run: OpenRun, now: datetime.datetime) -> None:
        """A run of a deployment of ours that the service never heard of: nobody will go on with it."""
        seconds = (now - run.since).total_seconds()
        if not run.is_ours:
            return
        if run.type == "CANCELLING":
            end, name = "CANCELLED", "Cancelled"
            message = f"cancelled in Prefect; nobody ended its process for {seconds:.0f} s"
        else:
            end, name = "CRASHED", "Crashed"
            message = f"{run.name} for {seconds:.0f} s: no process began to run it"
        logger.warning("run %s is stuck: %s", run.id, message)
        try:
            await self._gateway.set_state(run.id, end, name, message)
        except RunGone:
            return

    async def _tell_again(self, row: sa.Row[Any], run: OpenRun) -> None:
        async with changing(self._db) as change:
            # Locked, so that what is told is not overtaken.
            await experimenting.lock_experiment(change, row.experiment_id)
            if row.state in states.TERMINAL:
                logger.warning("%s %s has ended, but its run is %s", row.kind, row.id, run.name)
                prefect_states.ended(change, f"{row.kind}:{row.id}", row.state, row.reason)
            elif row.kind == "trial" and run.type == "PENDING":
                await prefect_states.tell_present(change, row.id, row.reason)

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
                    change, row.id, Exit(ExitKind.INFRASTRUCTURE, reason=reason), only_in=row.state
                )


async def _cancel(change: Change, row: sa.Row[Any]) -> None:
    """What a cancel in Prefect means here."""
    if row.kind == "experiment":
        await experimenting.cancel(change, row.id)
    else:
        await trialing.kill(change, row.id)
