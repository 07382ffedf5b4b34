"""Writes the pages: of runs that ended (:class:`Mirror` asks for these), and of pipelines and experiments
while they run.

Pages of running experiments are rarely written, as each call costs Prefect some 10 ms of CPU: at most one for
an experiment in ten seconds, and only of what has changed. No part is stored here: after a restart the
service finds the artifacts by their keys or descriptions.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.printable import one_line
from determined_service.base.db import Database
from determined_service.base.settings import Settings
from determined_service.prefect.gateway import Artifact, ArtifactGone, Gateway
from determined_service.prefect.pages.experiment import OF_BOARDS, ExperimentPage, experiment_page
from determined_service.prefect.pages.pipeline import pipeline_page
from determined_service.prefect.pages.retraining import retraining_page
from determined_service.prefect.pages.trial import trial_page
from determined_service.state.change import reader

logger = logging.getLogger(__name__)

PASS_S = 10.0
MOST = 20
"""The number of experiments that one pass looks at, those first that were not seen for the longest time."""

_RUNNING = sa.text(
    "SELECT e.id, r.flow_run_id FROM experiments e JOIN kept_runs r ON r.experiment_id = e.id "
    "WHERE e.state NOT IN ('COMPLETED', 'CANCELED', 'ERROR') AND r.flow_run_id IS NOT NULL"
)
_BESIDE_BOARDS = sa.text(
    f"SELECT DISTINCT r.experiment_id AS id, r.flow_run_id FROM ({OF_BOARDS}) b"
    " JOIN kept_runs r ON r.experiment_id = b.experiment_id WHERE r.flow_run_id IS NOT NULL"
)
_CHANGED_PIPELINES = sa.text(
    "SELECT p.id, p.changes, p.retraining_run_id, r.flow_run_id "
    "FROM pipelines p JOIN kept_runs r ON r.pipeline_id = p.id "
    "WHERE p.shown < p.changes AND r.flow_run_id IS NOT NULL ORDER BY p.id LIMIT :most"
)
_SHOWN = sa.text("UPDATE pipelines SET shown = :changes WHERE id = :id AND shown < :changes")


@dataclass(slots=True)
class _Shown:
    """The artifacts on a run's page; ``ids`` None: not known yet. ``digests`` and ``at`` (of each) by key."""

    ids: dict[str, UUID] | None = None
    digests: dict[str, bytes] = field(default_factory=dict)
    at: dict[str, float] = field(default_factory=dict)
    looked_at: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class RunPages:
    """One per cluster (the leader's)."""

    def __init__(
        self, db: Database, gateway: Gateway, settings: Settings, *, pass_s: float = PASS_S
    ) -> None:
        self._db = db
        self._gateway = gateway
        self._settings = settings
        self._pass_s = pass_s
        self._shown: dict[int, _Shown] = {}
        # As they were in the last look: once more after the last TensorBoard's end, without it.
        self._beside_boards: dict[int, UUID] = {}

    async def run(self) -> None:
        """Check the running experiments, for ever."""
        while True:
            await asyncio.sleep(self._pass_s)
            try:
                await self.look()
            except (httpx.HTTPError, sa.exc.OperationalError) as error:
                # Prefect or Postgres is away: the next pass sees the same again.
                logger.info("the pages of runs wait: %s", error)

    async def look(self) -> None:
        """Write the changed pages of pipelines, and of running experiments, with one call for each. A page
        that Prefect refuses is tried again in a later pass."""
        await self._show_pipelines()
        now = time.monotonic()
        async with reader(self._db).connect() as conn:
            running = {row.id: row.flow_run_id for row in await conn.execute(_RUNNING)}
            # Pages of ended experiments change only by their links to TensorBoards.
            boards = {row.id: row.flow_run_id for row in await conn.execute(_BESIDE_BOARDS)}
        last = self._beside_boards.keys() - boards.keys() - running.keys()
        running = {**self._beside_boards, **boards, **running}
        self._beside_boards = boards
        self._shown = {key: shown for key, shown in self._shown.items() if key in running}
        for key in running:
            self._shown.setdefault(key, _Shown())
        for key in sorted(running, key=lambda one: self._shown[one].looked_at)[:MOST]:
            self._shown[key].looked_at = now
            try:
                # Pages that are looked at for the last time get all their changes.
                most = None if key in last else 1
                await self._show(key, running[key], self._shown[key], most=most)
            except (httpx.TransportError, sa.exc.OperationalError):
                raise
            except Exception:
                # A failure of one page must not end the leader's other work.
                logger.exception("the page of experiment %s cannot be written", key)

    async def show_experiment(self, experiment_id: int, run_id: UUID) -> None:
        """Writes all of the experiment's page."""
        # Kept until a look() after the end, so that the next pass of a running experiment knows the written
        # page.
        shown = self._shown.setdefault(experiment_id, _Shown())
        await self._show(experiment_id, run_id, shown)

    async def _show_pipelines(self) -> None:
        async with reader(self._db).connect() as conn:
            changed = list(await conn.execute(_CHANGED_PIPELINES, {"most": MOST}))
        for row in changed:
            async with reader(self._db).connect() as conn:
                artifact = await _of_pipeline(conn, row)
            if artifact is not None:
                try:
                    known = (await self._gateway.artifacts(row.flow_run_id)).get(artifact.called)
                    await self._put(row.flow_run_id, artifact, known)
                except httpx.HTTPStatusError as error:
                    # Pages matter less than the requests behind them.
                    logger.warning("Prefect refuses the page of pipeline %s: %s", row.id, error)
            async with reader(self._db).connect() as conn:
                await conn.execute(_SHOWN, {"id": row.id, "changes": row.changes})

    async def show_trial(self, task_id: str, run_id: UUID, *, again: bool) -> None:
        """Writes the page of the trial with the task; ``again``: it may have one."""
        async with reader(self._db).connect() as conn:
            page = await trial_page(conn, self._settings, task_id)
        if page is None:
            return
        artifact = Artifact(
            None,  # thousands of trials would bury everything else on the page of all artifacts
            "markdown",
            page.text,
            f"Trial {page.trial_id}: metrics, checkpoints, the end of its log.",
        )
        # A trial of one leg has no page before its end: nothing to look for, in most cases.
        again = again or page.legs > 1
        known = (await self._gateway.artifacts(run_id)).get(artifact.called) if again else None
        await self._put(run_id, artifact, known)

    async def _show(
        self, experiment_id: int, run_id: UUID, shown: _Shown, most: int | None = None
    ) -> None:
        # Read under the lock, so that the last writer has the latest facts.
        async with shown.lock:
            async with reader(self._db).connect() as conn:
                page = await experiment_page(conn, self._settings, experiment_id)
            if page is None:
                return
            changed = [
                one
                for one in _artifacts(experiment_id, page)
                if shown.digests.get(one.called) != _digest(one)
            ]
            changed.sort(key=lambda one: shown.at.get(one.called, 0.0))
            for artifact in changed[:most]:
                if shown.ids is None:
                    shown.ids = await self._gateway.artifacts(run_id)
                ids, shown.ids = (
                    shown.ids,
                    None,
                )  # not known when the call fails: it may have been heard
                ids[artifact.called] = await self._put(run_id, artifact, ids.get(artifact.called))
                shown.ids = ids
                shown.digests[artifact.called] = _digest(artifact)
                shown.at[artifact.called] = time.monotonic()

    async def _put(self, run_id: UUID, artifact: Artifact, known: UUID | None) -> UUID:
        if known is not None:
            try:
                await self._gateway.update_artifact(known, artifact)
            except ArtifactGone:
                pass  # deleted by a user
            else:
                return known
        return await self._gateway.create_artifact(run_id, artifact)


async def _of_pipeline(conn: AsyncConnection, row: sa.Row[Any]) -> Artifact | None:
    """The page of the pipeline, or of the retraining's run that it is; None: it is gone."""
    if row.retraining_run_id is None:
        text = await pipeline_page(conn, row.id)
        what = "The pipeline: its steps, their experiments, and why."
        key = f"determined-pipeline-{row.id}"
        return None if text is None else Artifact(key, "markdown", text, what)
    page = await retraining_page(conn, row.retraining_run_id)
    if page is None:
        return None
    what = f"Retraining of {one_line(page.model)}: this run, and each time before it."
    # One name for all runs of a model: Prefect's page of all artifacts lists the last one, with those before
    # it.
    return Artifact(f"determined-retraining-{page.model_id}", "markdown", page.text, what)


def _artifacts(experiment_id: int, page: ExperimentPage) -> Sequence[Artifact]:
    return [
        Artifact(
            f"determined-experiment-{experiment_id}",
            "markdown",
            page.summary,
            "The experiment, its best trial, and where to look.",
        ),
        Artifact(None, "progress", page.progress, "How far the search is."),
        Artifact(None, "table", page.trials, "Its trials, the best first."),
    ]


def _digest(artifact: Artifact) -> bytes:
    return hashlib.sha256(f"{artifact.type}\0{artifact.data}".encode()).digest()
