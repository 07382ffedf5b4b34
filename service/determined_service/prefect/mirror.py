"""Reports changes of state to Prefect: delivers the outbox, in order per entity, beside the control path.

A row is deleted once Prefect has answered. After a crash between the two the row is delivered again. This
is noticed (a row that was tried before is compared with the run's present state), so that Prefect's
``run_count`` stays the number of legs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from determined.common.backoff import Backoff
from determined.common.wire.prefect import experiment_tags, is_awaiting_slots
from determined_registry.database.tables import tasks
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.hub import Hub, wait_at_most
from determined_service.base.settings import Settings
from determined_service.prefect.gateway import Gateway, NotDeployed, RunGone
from determined_service.prefect.pages.writing import RunPages
from determined_service.state.change import changing, reader
from determined_service.state.prefect_states import (
    CREATE_TASK_RUN,
    EXPERIMENT_ENTITY,
    NAME_RUN,
    RETRAINING_ENTITY,
    SET_STATE,
    SHOW_PAGE,
    SHOW_REASON,
    TASK_ENTITY,
    experiment_of,
    task_of,
)

logger = logging.getLogger(__name__)

CONCURRENCY = 8
HOLD_S = 1.0
"""Seconds that a passing state must last before it is delivered: each call costs Prefect some 15 ms."""
GAP_S = 0.05
"""Least time between two looks at the outbox."""
SWEEP_S = 60.0
PAGE_ATTEMPTS = 3
"""The number of tries of a page, not counting those while Prefect is away."""
# The first wait and the longest: while Prefect does not answer, for one run that it refuses, and until
# the agent of a new cluster has registered the deployments.
AWAY_SECONDS = (0.5, 15.0)
AGAIN_SECONDS = (1.0, 30.0)
NOT_DEPLOYED_SECONDS = (0.1, 15.0)
PASSING = frozenset({"PENDING", "SCHEDULED", "PAUSED"})


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One row of the outbox, with facts about its entity. ``age_s``: since it was written."""

    id: int
    entity: str
    kind: str
    payload: dict[str, Any]
    attempts: int
    age_s: float
    run_id: UUID | None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class OutboxDelivery:
    """``row`` is to be delivered; ``ids`` (itself and rows it replaces) may be deleted then."""

    row: OutboxRow
    ids: tuple[int, ...]


def plan_deliveries(rows: Sequence[OutboxRow]) -> tuple[list[OutboxDelivery], float | None]:
    """The rows of one entity to deliver now, and the seconds after which to look again.

    A passing state (Pending, AwaitingSlots, Paused) that another state follows is never delivered. As the
    last state it is delivered when it has lasted :data:`HOLD_S`. Running and end states are always
    delivered. A reason why the run waits replaces no state, and is replaced by states and by other reasons.
    """
    deliveries: list[OutboxDelivery] = []
    replaced: list[int] = []
    for place, row in enumerate(rows):
        reason = row.kind == SHOW_REASON
        passing = reason or (row.kind == SET_STATE and row.payload["type"] in PASSING)
        replacing = (SET_STATE, SHOW_REASON) if reason else (row.kind,)
        follows = any(later.kind in replacing for later in rows[place + 1 :])
        if follows and (passing or row.kind == SHOW_PAGE):
            replaced.append(row.id)
        elif passing and row.age_s < HOLD_S:
            return deliveries, HOLD_S - row.age_s
        else:
            deliveries.append(OutboxDelivery(row, (*replaced, row.id)))
            replaced = []
    return deliveries, None


_ROWS = sa.text(
    f"""
    SELECT o.id, o.entity, o.kind, o.payload, o.attempts,
           extract(epoch FROM now() - o.created_at)::float8 AS age_s,
           coalesce(k.flow_run_id, r.flow_run_id, t.flow_run_id) AS run_id, u.username AS owner
    FROM prefect_outbox o
    LEFT JOIN tasks k ON starts_with(o.entity, '{TASK_ENTITY}')
        AND k.id = substr(o.entity, {len(TASK_ENTITY) + 1})
    -- CASE, because a cast may be evaluated before the condition beside it.
    LEFT JOIN experiments e ON e.id = CASE WHEN starts_with(o.entity, '{EXPERIMENT_ENTITY}')
        THEN split_part(o.entity, ':', 2)::int END
    LEFT JOIN kept_runs r ON r.experiment_id = e.id
    LEFT JOIN pipelines p ON p.retraining_run_id = CASE WHEN starts_with(o.entity, '{RETRAINING_ENTITY}')
        THEN split_part(o.entity, ':', 2)::bigint END
    LEFT JOIN kept_runs t ON t.pipeline_id = p.id
    LEFT JOIN users u ON u.id = coalesce(e.owner_id, k.owner_id)
    -- A trial's states wait until its run exists, those of other tasks until they made it.
    WHERE o.entity <> ALL(:busy) AND (
        k.id IS NULL OR k.flow_run_id IS NOT NULL OR o.kind = '{CREATE_TASK_RUN}')
    ORDER BY o.id
    LIMIT 1000
    """
)


class Mirror:
    """One per cluster (the leader's); :meth:`run` goes on until it is cancelled."""

    def __init__(
        self, db: Database, hub: Hub, gateway: Gateway, settings: Settings, pages: RunPages
    ) -> None:
        self._db = db
        self._hub = hub
        self._gateway = gateway
        self._settings = settings
        self._pages = pages
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._under_way: set[int] = set()
        self._waits: dict[str, Backoff] = {}
        self._not_before: dict[str, float] = {}
        self._away_until = 0.0
        self._away = Backoff(*AWAY_SECONDS)

    async def run(self) -> None:
        """Deliver rows whenever there are any."""
        with self._hub.subscribe([topics.OUTBOX]) as event:
            try:
                while True:
                    event.clear()
                    wait = await self._dispatch(event)
                    await wait_at_most(event, wait)
                    await asyncio.sleep(GAP_S)
            finally:
                left = list(self._tasks.values())
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)

    async def _dispatch(self, event: asyncio.Event) -> float:
        """Starts deliveries; returns the seconds after which to look again unasked."""
        now = time.monotonic()
        if now < self._away_until:
            return self._away_until - now
        room = CONCURRENCY - len(self._tasks)
        if room <= 0:
            return SWEEP_S
        waiting = {entity: at for entity, at in self._not_before.items() if at > now}
        async with reader(self._db).connect() as conn:
            found = await conn.execute(_ROWS, {"busy": [*self._tasks, *waiting]})
            rows = [OutboxRow(**row._mapping) for row in found]
        look_again = [SWEEP_S, *(at - now for at in waiting.values())]
        entities = dict.fromkeys(row.entity for row in rows)
        by_entity = {
            entity: list(group)
            for entity, group in groupby(
                sorted(rows, key=lambda row: (row.entity, row.id)), lambda row: row.entity
            )
        }
        for entity in entities:
            if any(row.id in self._under_way for row in by_entity[entity]):
                # Its trial was continued: these rows belonged to the task of before when they were read.
                continue
            deliveries, later = plan_deliveries(by_entity[entity])
            if later is not None:
                look_again.append(later)
            if deliveries and room > 0:
                room -= 1
                ids = {one for delivery in deliveries for one in delivery.ids}
                self._under_way |= ids
                self._tasks[entity] = asyncio.create_task(
                    self._deliver_then_wake(entity, deliveries, ids, event), name=f"mirror {entity}"
                )
        return max(min(look_again), GAP_S)

    async def _deliver_then_wake(
        self, entity: str, deliveries: Sequence[OutboxDelivery], ids: set[int], event: asyncio.Event
    ) -> None:
        try:
            await self._deliver(entity, deliveries)
        finally:
            del self._tasks[entity]
            self._under_way -= ids
            event.set()

    async def _deliver(self, entity: str, deliveries: Sequence[OutboxDelivery]) -> None:
        try:
            for delivery in deliveries:
                if delivery.row.kind == CREATE_TASK_RUN:
                    await self._create_task_run(delivery)
                elif delivery.row.kind == SHOW_PAGE:
                    await self._show_page(delivery)
                elif delivery.row.kind == NAME_RUN:
                    await self._name_run(delivery)
                else:
                    await self._set_state(delivery)
        except Exception as error:
            await self._put_off(deliveries[0].row, entity, error)
        else:
            self._waits.pop(entity, None)
            self._not_before.pop(entity, None)
            self._away.reset()

    async def _put_off(self, row: OutboxRow, entity: str, error: Exception) -> None:
        away = self._gateway.is_away(error)
        if away:
            if not self._away.tries:
                logger.warning(
                    "Prefect does not answer (%s); the states are delivered later", error
                )
            self._away_until = time.monotonic() + self._away.next_delay()
        soon = isinstance(error, NotDeployed)
        bounds = NOT_DEPLOYED_SECONDS if soon else AGAIN_SECONDS
        backoff = self._waits.setdefault(entity, Backoff(*bounds))
        self._not_before[entity] = time.monotonic() + backoff.next_delay()
        if not away:
            log = logger.warning if backoff.tries in (1, 5) else logger.debug
            detail = None if soon else error
            log("Prefect refused the state of %s: %s", entity, error, exc_info=detail)
        with contextlib.suppress(sa.exc.SQLAlchemyError):
            async with self._db.tx() as conn:
                await conn.execute(
                    sa.text(
                        "UPDATE prefect_outbox SET attempts = attempts + 1, last_error = :error "
                        "WHERE entity = :entity AND id >= :id"
                    ),
                    {"error": str(error), "entity": entity, "id": row.id},
                )

    async def _set_state(self, delivery: OutboxDelivery) -> None:
        row = delivery.row
        payload = row.payload
        run_id = row.run_id
        if run_id is not None:
            try:
                if await self._is_due(row, run_id):
                    await self._gateway.set_state(
                        run_id, payload["type"], payload["name"], payload["message"]
                    )
            except RunGone:
                logger.info("%s has no run in Prefect any more", row.entity)
        async with reader(self._db).connect() as conn:
            await conn.execute(_DELETE, {"ids": list(delivery.ids)})

    async def _is_due(self, row: OutboxRow, run_id: UUID) -> bool:
        """True if the run is still to get the state, by its present one."""
        if row.kind == SHOW_REASON:
            # A state that a user gave the run after the reason was written stays.
            return is_awaiting_slots((await self._gateway.read_state(run_id)).name)
        if not row.attempts:
            return True
        found = await self._gateway.read_state(run_id)
        told = (found.type, found.name, found.message or "")
        return told != (row.payload["type"], row.payload["name"], row.payload["message"])

    async def _create_task_run(self, delivery: OutboxDelivery) -> None:
        """Make the run of a launched task; its later states are delivered after it."""
        row = delivery.row
        task_id, run_id = task_of(row.entity), row.run_id
        if run_id is None:
            owner = [f"owner-{row.owner}"] if row.owner else []
            run_id = await self._gateway.create_task_run(
                row.payload["flow"],
                task_id,
                pool=row.payload.get("pool"),
                key=f"determined-{self._settings.cluster_id}-task-{task_id}",
                name=row.payload["name"],
                tags=["determined", *owner, f"task-{task_id}", *row.payload.get("place", ())],
            )
        async with changing(self._db) as change:
            await change.conn.execute(
                sa.update(tasks).where(tasks.c.id == task_id).values(flow_run_id=run_id)
            )
            await change.conn.execute(_DELETE, {"ids": list(delivery.ids)})
            change.notify(topics.OUTBOX, topics.task(task_id))

    async def _show_page(self, delivery: OutboxDelivery) -> None:
        """Write the page of the run."""
        row = delivery.row
        try:
            if row.run_id is None:
                pass  # no run, no page
            elif row.entity.startswith(EXPERIMENT_ENTITY):
                await self._pages.show_experiment(experiment_of(row.entity), row.run_id)
            else:
                again = bool(row.attempts or row.payload.get("again"))
                await self._pages.show_trial(task_of(row.entity), row.run_id, again=again)
        except Exception as error:
            # The states that wait behind it matter more.
            if self._gateway.is_away(error) or row.attempts < PAGE_ATTEMPTS:
                raise
            logger.warning("Prefect refuses the page of %s: %s", row.entity, error)
        async with reader(self._db).connect() as conn:
            await conn.execute(_DELETE, {"ids": list(delivery.ids)})

    async def _name_run(self, delivery: OutboxDelivery) -> None:
        """Name the run that submitted the experiment after it, or that began the retraining's run."""
        row = delivery.row
        if row.run_id is not None:
            with contextlib.suppress(RunGone):
                tags = row.payload.get("tags")
                if tags is None:
                    experiment_id = experiment_of(row.entity)
                    tags = ["determined", *experiment_tags(experiment_id, row.owner)]
                    tags += row.payload.get("place", ())
                await self._gateway.name_run(row.run_id, row.payload["name"], tags)
        async with reader(self._db).connect() as conn:
            await conn.execute(_DELETE, {"ids": list(delivery.ids)})


_DELETE = sa.text("DELETE FROM prefect_outbox WHERE id = ANY(:ids)")
