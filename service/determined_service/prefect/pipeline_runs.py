"""Sees that each pipeline that runs has a live run in Prefect, and writes the pages of these runs.

Runs in the leading service process (:mod:`determined_service.loops.runtime`); every pass may be repeated. A
pipeline has one run: when its process dies, or the pipeline is resumed, that run is scheduled again, so that
the experiments of all tries are its subflows. (Another one is made only when somebody deleted it.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

import httpx
import sqlalchemy as sa

from determined.common.wire.prefect import CANCELLED, COMPLETED, FAILED, pipeline_tags
from determined_registry.database.tables import pipeline_experiments, pipelines, users
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.errors import ApiError
from determined_service.base.hub import Hub
from determined_service.base.settings import Settings
from determined_service.pipelines import machine, people, rows
from determined_service.prefect import passes
from determined_service.prefect.gateway import (
    ENDED,
    Artifact,
    ArtifactGone,
    RunGone,
)
from determined_service.prefect.mirror import bump_pools
from determined_service.prefect.pages.pipeline import pipeline_page
from determined_service.state.change import changing, reader

logger = logging.getLogger(__name__)

PASS_S = 5.0
LOST_S = 120.0
"""A run whose flow has not asked for this long counts as dead; the flow asks twice a minute."""
MAX_REVIVALS = 10
PAGE_S = 10.0
"""Least time between two writings of the page of a pipeline that runs."""

p = pipelines.c


class Runs(passes.States, Protocol):
    """The calls to Prefect; implemented by :class:`~determined_service.prefect.gateway.PrefectGateway`."""

    async def create_pipeline_run(
        self, pipeline_id: int, *, key: str, name: str, tags: Sequence[str]
    ) -> tuple[UUID, str | None]:
        """Creates the run, once per ``key``; returns it and its work pool. Raises NotDeployed."""

    async def pipeline_pool(self) -> str | None:
        """The work pool of these runs. Raises NotDeployed."""

    async def artifacts(self, run_id: UUID) -> dict[str, UUID]:
        """The run's artifacts by :attr:`Artifact.called`."""

    async def create_artifact(self, run_id: UUID, artifact: Artifact) -> UUID:
        """Shows it among the run's artifacts; returns its id."""

    async def update_artifact(self, artifact_id: UUID, artifact: Artifact) -> None:
        """Gives the artifact its new content. Raises ArtifactGone."""


class PipelineRuns:
    """One per cluster (the leader's), where there is a Prefect."""

    def __init__(self, db: Database, prefect: Runs, settings: Settings) -> None:
        self._db = db
        self._prefect = prefect
        self._settings = settings
        self._shown_at: dict[int, float] = {}
        self._written: dict[int, str] = {}

    async def run(self, hub: Hub) -> None:
        """Repeats passes for ever: at once when there is something new, else every few seconds."""
        await passes.repeat(self.run_pass, hub, topics.PIPELINES, PASS_S, "pipelines")

    async def run_pass(self) -> None:
        """Looks after every pipeline that runs, finishes what was canceled, and writes pages."""
        async with reader(self._db).connect() as conn:
            stopping = list((await conn.execute(_STOPPING)).scalars())
            open_ones = list(await conn.execute(_OPEN))
        for pipeline_id in stopping:
            await people.stop(self._db, pipeline_id)
        for row in open_ones:
            try:
                await self._look_at(row)
            except ApiError as error:
                logger.info("pipeline %s: %s", row.id, error.message)
        async with reader(self._db).connect() as conn:
            unshown = list(await conn.execute(_UNSHOWN))
        for row in unshown:
            await self._show(row)

    async def _look_at(self, row: sa.Row[Any]) -> None:
        if row.flow_run_id is None:
            await self._create(row)
            return
        try:
            state = await self._prefect.read_state(row.flow_run_id)
        except RunGone:
            await self._create(row)
            return
        if row.wake:
            # It was resumed. Before its flow has ended it may hear of that, and go on.
            if state.type in ENDED:
                await self._schedule(row, "the pipeline was resumed")
            elif state.type != "SCHEDULED" and row.silent_s > LOST_S:
                await self._schedule(row, "the pipeline was resumed, its flow was lost")
        elif state.type in ("CANCELLING", "CANCELLED"):
            async with changing(self._db) as change:
                now = await rows.lock(change.conn, row.id)
                if now.state != machine.RUNNING or now.wake:
                    return
                await people.cancel_locked(change, now, "its run was cancelled in Prefect")
            await people.stop(self._db, row.id)
        elif state.type in ENDED:
            await self._revive(row, "its flow was interrupted: started again")
        elif state.type != "SCHEDULED" and row.silent_s > LOST_S:
            await self._revive(row, f"its flow sent no sign of life for {LOST_S:.0f} s")

    async def _revive(self, row: sa.Row[Any], why: str) -> None:
        if row.revivals >= MAX_REVIVALS:
            reason = f"its flow was interrupted {MAX_REVIVALS} times in a row"
            async with changing(self._db) as change:
                now = await rows.lock(change.conn, row.id)
                if now.state == machine.RUNNING:
                    await people.cancel_locked(change, now, reason, machine.FAILED)
            await people.stop(self._db, row.id)
            return
        logger.warning("the flow of pipeline %s was interrupted and starts again", row.id)
        await self._schedule(row, why, revivals=row.revivals + 1)

    async def _schedule(self, row: sa.Row[Any], why: str, **values: Any) -> None:
        await self._prefect.set_state(row.flow_run_id, "SCHEDULED", "Scheduled", why)
        async with changing(self._db) as change:
            found = await change.conn.execute(
                sa.update(pipelines)
                .where(p.id == row.id)
                .values(wake=False, seen_at=sa.func.now(), **values)
                .returning(p.id)
            )
            if found.first() is not None:
                await bump_pools(change, 0, await self._prefect.pipeline_pool())

    async def _create(self, row: sa.Row[Any]) -> None:
        run_id, pool = await self._prefect.create_pipeline_run(
            row.id,
            key=f"determined-{self._settings.cluster_id}-pipeline-{row.id}-{row.runs + 1}",
            name=f"{row.name} (pipeline {row.id})",
            tags=["determined", *pipeline_tags(row.id), f"owner-{row.username}"],
        )
        async with changing(self._db) as change:
            await change.conn.execute(
                sa.update(pipelines)
                .where(p.id == row.id)
                .values(
                    flow_run_id=run_id,
                    runs=row.runs + 1,
                    wake=False,
                    seen_at=sa.func.now(),
                    changes=p.changes + 1,
                )
            )
            await bump_pools(change, 0, pool)

    async def _show(self, row: sa.Row[Any]) -> None:
        now = time.monotonic()
        running = row.state == machine.RUNNING
        if running and now - self._shown_at.get(row.id, -PAGE_S) < PAGE_S:
            return
        self._shown_at[row.id] = now
        async with reader(self._db).connect() as conn:
            text = await pipeline_page(conn, row.id)
        if text is not None and text != self._written.get(row.id):
            try:
                await self._write(row, text)
            except httpx.HTTPStatusError as error:
                # Pages matter less than what comes behind them.
                logger.warning("Prefect refuses the page of pipeline %s: %s", row.id, error)
            self._written[row.id] = text
        if not running:
            message = f"pipeline {row.id} {row.state}: {row.reason}"
            overdue = row.ended_s >= LOST_S
            if not await passes.settle(
                self._prefect, row.flow_run_id, _ENDS[row.state], message, overdue=overdue
            ):
                return  # it is looked at again
            del self._shown_at[row.id]
            self._written.pop(row.id, None)
        async with reader(self._db).connect() as conn:
            await conn.execute(sa.update(pipelines).where(p.id == row.id).values(shown=row.changes))

    async def _write(self, row: sa.Row[Any], text: str) -> None:
        what = "The pipeline: its steps, their experiments, and why."
        artifact = Artifact(f"determined-pipeline-{row.id}", "markdown", text, what)
        known = (await self._prefect.artifacts(row.flow_run_id)).get(artifact.called)
        if known is not None:
            try:
                await self._prefect.update_artifact(known, artifact)
            except ArtifactGone:
                known = None  # somebody deleted it
        if known is None:
            await self._prefect.create_artifact(row.flow_run_id, artifact)


_ENDS = {
    machine.COMPLETED: ("COMPLETED", COMPLETED),
    machine.FAILED: ("FAILED", FAILED),
    machine.CANCELED: ("CANCELLED", CANCELLED),
}
_OPEN = (
    sa.select(
        p.id,
        p.name,
        p.flow_run_id,
        p.runs,
        p.revivals,
        p.wake,
        users.c.username,
        sa.extract("epoch", sa.func.now() - p.seen_at).label("silent_s"),
    )
    .join(users, users.c.id == p.owner_id)
    .where(p.state == machine.RUNNING)
    .order_by(p.id)
)
_UNSHOWN = (
    sa.select(
        p.id,
        p.state,
        p.reason,
        p.flow_run_id,
        p.changes,
        sa.extract("epoch", sa.func.now() - p.ended_at).label("ended_s"),
    )
    .where(p.shown < p.changes, p.flow_run_id.is_not(None))
    .order_by(p.id)
    .limit(20)
)
_STOPPING = (
    sa.select(pipeline_experiments.c.pipeline_id)
    .where(pipeline_experiments.c.state == machine.STOPPING)
    .distinct()
)
