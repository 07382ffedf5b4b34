"""Sees to it that each deletion comes to its end: makes its runs in Prefect, again if they die.

Runs in the leading service process (:mod:`determined_service.control.runtime`); every pass may be
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

from determined_registry.tables import deletions
from determined_service.control import deletions as deleting
from determined_service.control.change import changing, reader
from determined_service.control.erasure import erase, runs_of
from determined_service.control.mirror import bump_pools
from determined_service.control.prefect_gateway import ENDED, NotDeployed, RunGone, RunState
from determined_service.db import Database
from determined_service.errors import ApiError
from determined_service.hub import Hub, wait_at_most

logger = logging.getLogger(__name__)

PASS_S = 5.0
SOON_S = 0.5
LOST_S = 60.0
"""A run that says nothing for so long is dead, whatever Prefect thinks of it."""
MAX_ATTEMPTS = 10
FORGET_DAYS = 7

d = deletions.c


class Runs(Protocol):
    """What is asked of Prefect; :class:`~determined_service.control.prefect_gateway.PrefectGateway`."""

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

    def __init__(self, db: Database, runs: Runs, cluster_id: str) -> None:
        self._db = db
        self._runs = runs
        self._cluster_id = cluster_id

    async def run(self, hub: Hub) -> None:
        """Passes for ever: at once when something is to be deleted, else every few seconds."""
        wait_s = PASS_S
        told: str | None = None
        while True:
            with hub.subscribe([deleting.TOPIC]) as event:
                await wait_at_most(event, wait_s)
            try:
                wait_s = SOON_S if await self.run_pass() else PASS_S
                told = None
            except (httpx.HTTPError, sa.exc.OperationalError, NotDeployed) as error:
                if str(error) != told:
                    logger.warning("deletions wait: %s", error)
                told = str(error)

    async def run_pass(self) -> bool:
        """Looks at everything that is to be deleted once; whether something will be there soon."""
        async with reader(self._db).connect() as conn:
            rows = list(await conn.execute(_OPEN))
            await conn.execute(_FORGET, {"days": FORGET_DAYS})
        for row in rows:
            try:
                await self._look_at(row)
            except ApiError as error:
                # Somebody has deleted it meanwhile.
                logger.info("deletion %s: %s", row.id, error.message)
        return any(row.state == deleting.DONE for row in rows)

    async def _look_at(self, row: sa.Row[Any]) -> None:
        if row.state == deleting.DONE:
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
            key=f"determined-{self._cluster_id}-deletion-{row.id}-{attempt}",
            name=f"checkpoint-gc{of} #{row.id}",
            tags=tags,
        )
        async with changing(self._db) as change:
            await change.conn.execute(
                sa.update(deletions)
                .where(d.id == row.id)
                .values(
                    flow_run_id=run_id,
                    earlier_run_ids=_EARLIER,
                    attempts=attempt,
                    seen_at=sa.func.now(),
                )
            )
            await bump_pools(change, row.experiment_id or 0, pool)

    async def _is_dead(self, row: sa.Row[Any]) -> bool:
        try:
            run = await self._runs.read_state(row.flow_run_id)
        except RunGone:
            return True
        if run.type == "SCHEDULED" and row.silent_s > PASS_S:
            async with changing(self._db) as change:
                await bump_pools(change, row.experiment_id or 0, "default")
            return False
        if run.type in ENDED:
            return True
        if run.type == "SCHEDULED" or row.silent_s < LOST_S:
            return False
        await self._runs.set_state(
            row.flow_run_id, "CRASHED", "Crashed", f"said nothing for {LOST_S:.0f} s"
        )
        return True

    async def _again(self, row: sa.Row[Any]) -> None:
        async with reader(self._db).connect() as conn:
            # It may have come to its end, and its run too, since the row was read.
            state = await conn.execute(sa.select(d.state).where(d.id == row.id))
        if state.scalar_one_or_none() != deleting.REQUESTED:
            return
        if row.attempts < MAX_ATTEMPTS:
            logger.warning("deletion %s was interrupted: it is done again", row.id)
            await self._create_run(row)
            return
        async with changing(self._db) as change:
            await deleting.end(
                change, row.id, f"its flow was interrupted {MAX_ATTEMPTS} times in a row"
            )

    async def _erase(self, row: sa.Row[Any]) -> None:
        """The files of an experiment are gone: now its runs, then its rows."""
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


_EARLIER = sa.case(
    (d.flow_run_id.is_(None), d.earlier_run_ids),
    else_=d.earlier_run_ids.op("||")(sa.func.jsonb_build_array(d.flow_run_id)),
)
_OPEN = sa.text(
    """
    SELECT id, kind, experiment_id, state, attempts, flow_run_id,
           extract(epoch FROM now() - seen_at)::float8 AS silent_s,
           extract(epoch FROM now() - ended_at)::float8 AS ended_s
    FROM deletions
    WHERE state = 'REQUESTED' OR (state = 'DONE' AND kind = 'experiment')
    ORDER BY id
    """
)
_FORGET = sa.text(
    """
    DELETE FROM deletions
    WHERE state = 'DONE' AND experiment_id IS NULL
      AND ended_at < now() - make_interval(days => :days)
    """
)
