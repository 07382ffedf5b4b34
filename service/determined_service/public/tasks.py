"""Tasks of every kind: trials, deletions of checkpoints."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from determined_service.access.dependencies import TaskReader
from determined_service.base.bounds import Count
from determined_service.base.json import JsonResponse
from determined_service.views.tasks import get_task, list_tasks, running_summaries
from determined_service.web.router import Router
from determined_service.web.state import Db, SnapshotsOf, ViewerOf

router = Router("Tasks")


@router.get("/api/v1/tasks")
async def read_tasks(
    user: TaskReader,
    db: Db,
    snapshots: SnapshotsOf,
    taskTypes: Annotated[list[str], Query()] = [],  # noqa: N803, B006 - the API's; FastAPI copies it
    offset: Count = 0,
    limit: Annotated[int, Query(ge=0, le=1000)] = 100,
    excludeAllocations: bool = False,  # noqa: N803 - the API's
) -> Response:
    """`allocationIdToSummary`: the allocations that run or wait for slots now, and deletions under way.

    `tasks`: the latest tasks of the given `taskTypes` (such as `TASK_TYPE_CHECKPOINT_GC`; by default of all),
    ended ones included. With `excludeAllocations` only these."""
    kinds = [name.removeprefix("TASK_TYPE_") for name in taskTypes]
    async with db.tx() as conn:
        live: dict[str, Any] = {}
        if not excludeAllocations:
            live = await running_summaries(conn, snapshots.schedulers.config)
        shown = await list_tasks(conn, kinds, offset, limit)
    return JsonResponse({"allocationIdToSummary": live, "tasks": shown})


@router.get("/api/v1/tasks/{task_id}")
async def read_task(task_id: str, user: TaskReader, db: Db, viewer_of: ViewerOf) -> Response:
    """One task: its kind, owner and state, its allocations and its configuration, whose secrets are masked
    unless the owner or an administrator asks."""
    async with db.tx() as conn:
        return JsonResponse({"task": await get_task(conn, task_id, viewer_of(user))})


# Determined's older clients use this address and these keys.
@router.get("/tasks")
async def read_summaries(user: TaskReader, db: Db, snapshots: SnapshotsOf) -> Response:
    """The allocations that run or wait for slots now, and deletions under way, by id."""
    async with db.tx() as conn:
        found = await running_summaries(conn, snapshots.schedulers.config)
    return JsonResponse({key: _snake_case(summary) for key, summary in found.items()})


def _snake_case(value: Any) -> Any:
    """``agentDevices`` as ``agent_devices``, in all that is in ``value``; names of agents stay."""
    if isinstance(value, list):
        return [_snake_case(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        re.sub("[A-Z]", lambda found: "_" + found[0].lower(), key): item
        if key == "agentDevices"
        else _snake_case(item)
        for key, item in value.items()
    }
