"""Brings each deletion to its end: makes its runs in Prefect, and makes them again if they die.

Runs in the leading service process (:mod:`determined_service.loops.runtime`); every pass may be
repeated.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

import httpx
import sqlalchemy as sa

from determined_registry.database.tables import deletions, tasks
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.errors import ApiError
from determined_service.base.hub import Hub, wait_at_most
from determined_service.base.settings import Settings
from determined_service.deleting import deletions as deleting
from determined_service.deleting.erasure import erase, runs_of
from determined_service.prefect.gateway import ENDED, NotDeployed, RunGone, RunState
from determined_service.prefect.mirror import bump_pools
from determined_service.state import states
from determined_service.state.change import changing, reader
from determined_service.state.task_kinds import CHECKPOINT_GC

logger = logging.getLogger(__name__)

PASS_S = 5.0
SOON_S = 0.5
LOST_S = 60.0
"""A run without a sign of life for this long counts as dead, whatever its state in Prefect is."""
MAX_ATTEMPTS = 10
FORGET_DAYS = 7

d = deletions.c


class Runs(Protocol):
    """The calls to Prefect; implemented by :class:`~determined_service.prefect.gateway.PrefectGateway`."""

    async def create_deletion_run(
        self, deletion_id: int, *, key: str, name: str, tags: Sequence[str]
    ) -> tuple[UUID, str | None]:
        """Creates the run, once per ``key``; returns it and its work pool. Raises NotDeployed."""

    async def read_state(self, run_id: UUID) -> RunState:
        """The present state. Raises RunGone."""

    async def set_state(self, run_id: UUID, type: str, name: str, message: str) -> None:
        """Sets the state whatever the present one is. Raises RunGone."""

    async def delete_run(self, run_id: UUID) -> None:
        """Deletes the run with its artifacts; one that is gone already is no error."""


class DeletionRuns:
    """One per cluster (the leader's), where there is a Prefect."""

    def __init__(self, db: Database, runs: Runs, settings: Settings) -> None:
        self._db = db
        self._runs = runs
        self._settings = settings

    async def run(self, hub: Hub) -> None:
        """Repeat passes for ever: at once when there is something to delete, else every few seconds."""
        wait_s = PASS_S
        told: str | None = None
        while True:
            with hub.subscribe([topics.DELETIONS]) as event:
                await wait_at_most(event, wait_s)
            try:
                wait_s = SOON_S if await self.run_pass() else PASS_S
                told = None
            except (httpx.HTTPError, sa.exc.OperationalError, NotDeployed) as error:
                if str(error) != told:
                    logger.warning("deletions wait: %s", error)
                told = str(error)

    async def run_pass(self) -> bool:
        """Handle all requested deletions once. Returns whether there will be more soon."""
        async with reader(self._db).connect() as conn:
            rows = list(await conn.execute(_OPEN, {"task_kind": CHECKPOINT_GC}))
            await conn.execute(_FORGET, {"days": FORGET_DAYS})
        for row in rows:
            try:
                await self._look_at(row)
            except ApiError as error:
                # Somebody has deleted it meanwhile.
                logger.info("deletion %s: %s", row.id, error.message)
        return any(row.state == states.COMPLETED for row in rows)

    async def _look_at(self, row: sa.Row[Any]) -> None:
        if row.state == states.COMPLETED:
            await self._erase(row)
        elif row.flow_run_id is None:
            await self._begin(row)
        elif await self._is_dead(row):
            await self._again(row)

    async def _begin(self, row: sa.Row[Any]) -> None:
        async with changing(self._db) as change:
            if not await deleting.prepare(change, row.id):
                await deleting.end(change, row.id, None)
                return
        await self._create_run(row)

    async def _create_run(self, row: sa.Row[Any]) -> None:
        attempt = row.attempts + 1
        of = f" of experiment {row.experiment_id}" if row.experiment_id is not None else ""
        tags = ["determined", *([f"experiment-{row.experiment_id}"] if of else [])]
        run_id, pool = await self._runs.create_deletion_run(
            row.id,
            key=f"determined-{self._settings.cluster_id}-deletion-{row.id}-{attempt}",
            name=f"checkpoint-gc{of} #{row.id}",
            tags=tags,
        )
        async with changing(self._db) as change:
            await change.conn.execute(
                _RUN_MADE,
                {"id": row.id, "run": run_id, "attempt": attempt},
            )
            await bump_pools(change, row.experiment_id or 0, pool)

    async def _is_dead(self, row: sa.Row[Any]) -> bool:
        try:
            run = await self._runs.read_state(row.flow_run_id)
        except RunGone:
            return True
        if run.type == "SCHEDULED" and row.silent_s > PASS_S:
            async with changing(self._db) as change:
                await bump_pools(
                    change, row.experiment_id or 0, self._settings.cluster.pool_of_flows
                )
            return False
        if run.type in ENDED:
            return True
        if run.type == "SCHEDULED" or row.silent_s < LOST_S:
            return False
        await self._runs.set_state(
            row.flow_run_id,
            "CRASHED",
            "Crashed",
            f"its flow sent no sign of life for {LOST_S:.0f} s",
        )
        return True

    async def _again(self, row: sa.Row[Any]) -> None:
        async with reader(self._db).connect() as conn:
            # It may have come to its end, and its run too, since the row was read.
            state = await conn.execute(
                sa.select(tasks.c.state)
                .join(deletions, d.task_id == tasks.c.id)
                .where(d.id == row.id)
            )
        if state.scalar_one_or_none() != states.ACTIVE:
            return
        if row.attempts < MAX_ATTEMPTS:
            logger.warning("deletion %s was interrupted and starts again", row.id)
            await self._create_run(row)
            return
        async with changing(self._db) as change:
            await deleting.end(
                change, row.id, f"its flow was interrupted {MAX_ATTEMPTS} times in a row"
            )

    async def _erase(self, row: sa.Row[Any]) -> None:
        """Delete the runs and then the rows of an experiment whose files are gone."""
        if row.flow_run_id is not None and row.ended_s < PASS_S:
            # It is about to end. A run without a record would be a puzzle in its agent's log.
            with contextlib.suppress(RunGone):
                if (await self._runs.read_state(row.flow_run_id)).type not in ENDED:
                    return
        async with reader(self._db).connect() as conn:
            runs = await runs_of(conn, row.experiment_id)
        for run_id in runs:
            await self._runs.delete_run(run_id)
        async with changing(self._db) as change:
            await erase(change, row.experiment_id)


_RUN_MADE = sa.text(
    """
    WITH noted AS (
        UPDATE deletions d
        SET attempts = :attempt, seen_at = now(),
            earlier_run_ids = CASE WHEN k.flow_run_id IS NULL THEN d.earlier_run_ids
                ELSE d.earlier_run_ids || jsonb_build_array(k.flow_run_id) END
        FROM tasks k WHERE d.id = :id AND k.id = d.task_id
        RETURNING d.task_id
    )
    UPDATE tasks k SET flow_run_id = :run FROM noted WHERE k.id = noted.task_id
    """
)
_OPEN = sa.text(
    """
    SELECT d.id, d.kind, d.experiment_id, k.state, d.attempts, k.flow_run_id,
           extract(epoch FROM now() - d.seen_at)::float8 AS silent_s,
           extract(epoch FROM now() - k.end_time)::float8 AS ended_s
    FROM deletions d JOIN tasks k ON k.id = d.task_id
    WHERE k.id IN (
        SELECT id FROM tasks
        WHERE kind = :task_kind AND state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')
        UNION ALL
        SELECT o.task_id FROM deletions o JOIN tasks t ON t.id = o.task_id
        WHERE o.kind = 'experiment' AND t.state = 'COMPLETED')
    ORDER BY d.id
    """
)
_FORGET = sa.text(
    """
    WITH gone AS (
        DELETE FROM tasks k USING deletions d
        WHERE d.task_id = k.id AND d.experiment_id IS NULL AND k.state = 'COMPLETED'
          AND k.end_time < now() - make_interval(days => :days)
        RETURNING k.id
    )
    DELETE FROM task_logs l USING gone WHERE l.task_id = gone.id
    """
)
