"""Tasks."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from determined_service.api.state import Db
from determined_service.auth import CurrentUser
from determined_service.json import JsonResponse
from determined_service.views.tasks import get_task, running_summaries

router = APIRouter(prefix="/api/v1", tags=["Tasks"])


@router.get("/tasks")
async def list_tasks(user: CurrentUser, db: Db) -> Response:
    """What runs, or waits for slots, now."""
    async with db.tx() as conn:
        return JsonResponse({"allocationIdToSummary": await running_summaries(conn)})


@router.get("/tasks/{task_id}")
async def read_task(task_id: str, user: CurrentUser, db: Db) -> Response:
    """One task and its allocations."""
    async with db.tx() as conn:
        return JsonResponse({"task": await get_task(conn, task_id)})
