"""Begins the runs of retrainings when their time has come or an event has happened, and sees that each has a
live run in Prefect.

Runs in the leading service process (:mod:`determined_service.loops.runtime`); every pass may be repeated.
The schedule is the service's own: its next time is a row, which the transaction that begins a run moves on.
So what was missed while the cluster was down is caught up once. (Prefect makes no runs for times at which its
server was down, and starts every late one.)
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Collection, Sequence
from typing import Any, Protocol
from uuid import UUID

import sqlalchemy as sa

from determined_registry.database.tables import models, retraining_runs, retrainings
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.errors import ApiError, Conflict
from determined_service.base.hub import Hub
from determined_service.base.settings import Settings
from determined_service.prefect import passes
from determined_service.prefect.gateway import ENDED, RunGone
from determined_service.prefect.mirror import bump_pools
from determined_service.retraining import events, people, runs
from determined_service.retraining.plans import Plan
from determined_service.state.change import changing, reader

logger = logging.getLogger(__name__)

PASS_S = 5.0
LOST_S = 90.0
"""A run whose flow has not asked for this long counts as dead; the flow asks twice a minute."""
MAX_ATTEMPTS = 10
SETTLED_S = 600.0
"""For this long after the end of a run the state of its flow run is looked at."""

r = retraining_runs.c
t = retrainings.c


class Runs(passes.States, Protocol):
    """The calls to Prefect; implemented by :class:`~determined_service.prefect.gateway.PrefectGateway`."""

    async def create_retraining_run(
        self, run_id: int, *, key: str, name: str, tags: Sequence[str]
    ) -> tuple[UUID, str | None]:
        """Creates the run, once per ``key``; returns it and its work pool. Raises NotDeployed."""


class RetrainingRuns:
    """One per cluster (the leader's), where there is a Prefect."""

    def __init__(self, db: Database, prefect: Runs, settings: Settings) -> None:
        self._db = db
        self._prefect = prefect
        self._settings = settings
        self._next_look = 0.0
        self._settled: set[int] = set()

    async def run(self, hub: Hub) -> None:
        """Repeats passes for ever: at once when there is something new, else every few seconds."""
        await passes.repeat(self.run_pass, hub, topics.RETRAININGS, PASS_S, "retrainings")

    async def run_pass(self) -> None:
        """Begins what is due, and looks after every open run."""
        async with reader(self._db).connect() as conn:
            due = list((await conn.execute(_DUE)).scalars())
        for retraining_id in [*due, *await self._stirred(due)]:
            try:
                await self._begin(retraining_id)
            except Conflict as error:
                # Somebody has begun one by hand meanwhile.
                logger.info("retraining %s: %s", retraining_id, error.message)
        async with reader(self._db).connect() as conn:
            rows = list(await conn.execute(_OPEN))
        for row in rows:
            try:
                await self._look_at(row)
            except ApiError as error:
                logger.info("retraining run %s: %s", row.id, error.message)
        await self._settle()

    async def _settle(self) -> None:
        """Gives the flow runs of runs that have just ended their final state, if their flows could not."""
        async with reader(self._db).connect() as conn:
            rows = list(await conn.execute(_JUST_ENDED))
        self._settled &= {row.id for row in rows}
        for row in rows:
            if row.id in self._settled:
                continue
            end = _ENDS.get(row.state, ("COMPLETED", "Completed"))
            message = f"retraining run {row.id} {row.state}: {row.reason}"
            overdue = row.ended_s >= LOST_S
            if await passes.settle(self._prefect, row.flow_run_id, end, message, overdue=overdue):
                self._settled.add(row.id)

    async def _stirred(self, due: Collection[int]) -> list[int]:
        """Those for which an event has happened, and that are not ``due`` anyway."""
        now = time.monotonic()
        if now < self._next_look:
            return []
        self._next_look = now + PASS_S
        found = []
        async with reader(self._db).connect() as conn:
            for row in (await conn.execute(_WAITING_FOR_EVENTS)).all():
                if row.id not in due and (await events.happened(conn, row)).causes:
                    found.append(row.id)
        return found

    async def _begin(self, retraining_id: int) -> None:
        """Begins a run for all that asks for one: the schedule, and the events, whose marks move on."""
        async with changing(self._db) as change:
            found = await change.conn.execute(
                sa.select(retrainings)
                .where(t.id == retraining_id, ~t.paused, ~_HAS_OPEN_RUN)
                .with_for_update()
            )
            row = found.first()
            if row is None:
                return
            now = datetime.datetime.now(datetime.UTC)
            due_at = row.next_at if row.next_at is not None and row.next_at <= now else None
            happened = await events.happened(change.conn, row)
            if due_at is None and not happened.causes:
                return
            causes = list(happened.causes)
            values: dict[str, Any] = {"marks": happened.marks}
            if due_at is not None:
                following, why = _following(row, now)
                values["next_at"] = following
                causes.insert(0, why)
            await change.conn.execute(sa.update(retrainings).where(t.id == row.id).values(values))
            await runs.begin(change, row, "; ".join(causes), forced=happened.forced, due_at=due_at)

    async def _look_at(self, row: sa.Row[Any]) -> None:
        if row.flow_run_id is None:
            await self._create(row)
            return
        try:
            state = await self._prefect.read_state(row.flow_run_id)
        except RunGone:
            await self._create(row)
            return
        if state.type in ("CANCELLING", "CANCELLED"):
            async with changing(self._db) as change:
                run = await runs.lock_run(change.conn, row.id)
                if run.state in runs.OPEN:
                    await people.cancel_run(change, run, "its run was cancelled in Prefect")
        elif state.type in ENDED:
            await self._create(row)
        elif state.type != "SCHEDULED" and row.silent_s > LOST_S:
            why = f"its flow sent no sign of life for {LOST_S:.0f} s"
            await self._prefect.set_state(row.flow_run_id, "CRASHED", "Crashed", why)
            await self._create(row)

    async def _create(self, row: sa.Row[Any]) -> None:
        attempt = row.attempts + 1
        if attempt > MAX_ATTEMPTS:
            async with changing(self._db) as change:
                run = await runs.lock_run(change.conn, row.id)
                if run.state in runs.OPEN:
                    await runs.fail(
                        change, run, f"its flow was interrupted {MAX_ATTEMPTS} times in a row"
                    )
            return
        if row.attempts:
            logger.warning("the flow of retraining run %s was interrupted and starts again", row.id)
        run_id, pool = await self._prefect.create_retraining_run(
            row.id,
            key=f"determined-{self._settings.cluster_id}-retraining-{row.id}-{attempt}",
            name=runs.named(row.id, row.model),
            tags=runs.TAGS,
        )
        async with changing(self._db) as change:
            await change.conn.execute(
                sa.update(retraining_runs)
                .where(r.id == row.id)
                .values(flow_run_id=run_id, attempts=attempt, seen_at=sa.func.now())
            )
            await bump_pools(change, 0, pool)
            runs.show(change, row.id)


_ENDS = {runs.FAILED: ("FAILED", "Failed"), runs.CANCELED: ("CANCELLED", "Cancelled")}
_STEP = r.state.in_(runs.OPEN)
_HAS_OPEN_RUN = sa.exists().where(r.retraining_id == t.id, _STEP)


def _following(row: sa.Row[Any], now: datetime.datetime) -> tuple[datetime.datetime | None, str]:
    """When the schedule wants the run after this one, and the cause of this one, which says why there is
    none."""
    try:
        plan = Plan.model_validate(row.plan)
        return plan.next_after(now, row.created_at, stored=True), "schedule"
    except ApiError as error:
        logger.warning("retraining %s has no next time: %s", row.id, error.message)
        return None, f"schedule, for the last time ({error.message})"


_DUE = sa.select(t.id).where(~t.paused, t.next_at <= sa.func.now(), ~_HAS_OPEN_RUN)
_WAITING_FOR_EVENTS = (
    sa.select(retrainings)
    .where(~t.paused, sa.func.jsonb_array_length(t.plan["on"]) > 0, ~_HAS_OPEN_RUN)
    .order_by(t.id)
)
_OPEN = (
    sa.select(
        r.id,
        r.flow_run_id,
        r.attempts,
        models.c.name.label("model"),
        sa.extract("epoch", sa.func.now() - r.seen_at).label("silent_s"),
    )
    .join(retrainings, t.id == r.retraining_id)
    .join(models, models.c.id == t.model_id)
    .where(_STEP)
    .order_by(r.id)
)
_JUST_ENDED = (
    sa.select(
        r.id,
        r.state,
        r.reason,
        r.flow_run_id,
        sa.extract("epoch", sa.func.now() - r.ended_at).label("ended_s"),
    )
    .where(r.ended_at > sa.func.now() - datetime.timedelta(seconds=SETTLED_S))
    .where(r.flow_run_id.is_not(None))
    .order_by(r.id)
)
