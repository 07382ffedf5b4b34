"""Explains the state of an experiment."""

from __future__ import annotations

from typing import Any

from determined_service.access.dependencies import ExperimentReader
from determined_service.base.bounds import Id
from determined_service.scheduling.explanation import explain
from determined_service.web.router import Router
from determined_service.web.state import Db, SnapshotsOf

router = Router("Experiments", "/api/v1/experiments")


@router.get("/{experiment_id}/explanation")
async def get_explanation(
    experiment_id: Id, user: ExperimentReader, db: Db, snapshots: SnapshotsOf
) -> dict[str, Any]:
    """Every leg of the experiment's trials, with the reason of its state in words and what it waits for."""
    async with db.tx() as conn:
        return await explain(conn, experiment_id, snapshots)
