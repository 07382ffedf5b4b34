"""Begins the runs of retrainings when their time has come or an event has happened."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from determined_registry.database.tables import retraining_runs, retrainings
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.errors import ApiError, BadRequest, Conflict
from determined_service.loops.due import Due
from determined_service.pipelines.of_retraining import OPEN
from determined_service.recurring import events
from determined_service.retraining import runs
from determined_service.retraining.plans import Plan
from determined_service.state.change import changing, reader

logger = logging.getLogger(__name__)

r = retraining_runs.c
t = retrainings.c


class DueRetrainings(Due):
    topic = topics.RETRAININGS

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run_pass(self) -> None:
        """Begin the due runs."""
        async with reader(self._db).connect() as conn:
            due = list((await conn.execute(_DUE)).scalars())
        for retraining_id in [*due, *await self._stirred(due)]:
            try:
                await self._begin(retraining_id)
            except ApiError as error:
                # Somebody has begun one by hand meanwhile.
                logger.info("retraining %s: %s", retraining_id, error.message)

    async def _stirred(self, due: Collection[int]) -> list[int]:
        """Those for which an event has happened, and that are not ``due`` anyway."""
        if not self.may_look():
            return []
        found = []
        async with reader(self._db).connect() as conn:
            for row in (await conn.execute(_WAITING_FOR_EVENTS)).all():
                if row.id not in due and (await events.happened(conn, runs.watch_of(row))).causes:
                    found.append(row.id)
        return found

    async def _begin(self, retraining_id: int) -> None:
        """Begin one run for all its causes: the schedule, and the events, whose marks move on."""
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
            happened = await events.happened(change.conn, runs.watch_of(row))
            if due_at is None and not happened.causes:
                return
            causes = list(happened.causes)
            values: dict[str, Any] = {"marks": happened.marks}
            if due_at is not None:
                following, why = _following(row, now)
                values["next_at"] = following
                causes.insert(0, why)
            await change.conn.execute(sa.update(retrainings).where(t.id == row.id).values(values))
            try:
                await runs.begin(
                    change, row, "; ".join(causes), forced=happened.forced, due_at=due_at
                )
            except (BadRequest, Conflict) as refusal:
                # Its project is gone or closed: it is tried again when it is due next.
                logger.warning("retraining %s does not run: %s", row.id, refusal.message)


_HAS_OPEN_RUN = sa.exists().where(r.retraining_id == t.id, r.state.in_(OPEN))


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
