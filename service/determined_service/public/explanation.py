"""Explains the state of an experiment."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from determined_service.access.dependencies import ExperimentReader
from determined_service.base.bounds import Count, Id
from determined_service.base.json import JsonResponse
from determined_service.scheduling.explanation import explain
from determined_service.web.router import Router
from determined_service.web.state import Db, SnapshotsOf

router = Router("Experiments", "/api/v1/experiments")


@router.get("/{experiment_id}/explanation")
async def get_explanation(
    experiment_id: Id,
    user: ExperimentReader,
    db: Db,
    snapshots: SnapshotsOf,
    limit: Annotated[
        Count | None,
        Query(
            ge=1,
            description="The number of trials, the newest first, and of waiting requests. Default: all.",
        ),
    ] = None,
) -> Response:
    """Every leg of the experiment's trials, with the reason of its state in words, and the waiting
    requests."""
    async with db.tx() as conn:
        return JsonResponse(await explain(db, conn, experiment_id, snapshots, limit))
