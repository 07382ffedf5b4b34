"""The files that a task has left behind for its owner: asked about, fetched, dropped."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from determined_service.access.dependencies import may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.errors import Conflict
from determined_service.base.json import JsonResponse
from determined_service.base.streams import Stream
from determined_service.lifecycle import task_files
from determined_service.state.change import changing, reader
from determined_service.views.tasks import require_task
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Tasks")

Fetcher = Annotated[Principal, may(Action.ENTER, Kind.TASK, "fetch the files of")]
PATH = "/api/v1/tasks/{task_id}/returned-files"


@router.get(PATH)
async def facts(task_id: str, user: Fetcher, db: Db) -> Response:
    """`ready`: files are there to be fetched, `size` bytes of a tar.gz; `remarks`: what was left out."""
    async with reader(db).connect() as conn:
        await require_task(conn, task_id)
        found = await task_files.find(conn, task_id)
    if found is None:
        return JsonResponse({"ready": False, "size": 0, "remarks": []})
    return JsonResponse({"ready": True, "size": found.size, "remarks": found.remarks})


@router.get(f"{PATH}/archive")
async def archive(task_id: str, user: Fetcher, db: Db) -> Response:
    """The files as tar.gz. 409: there are none (any more)."""
    async with reader(db).connect() as conn:
        await require_task(conn, task_id)
        found = await task_files.find(conn, task_id)
    if found is None:
        raise Conflict(
            f"no files of task {task_id} are kept: it has left none, or they were fetched"
        )
    headers = {"Content-Length": str(found.size)}
    return Stream(found.pieces(db), media_type="application/gzip", headers=headers)


@router.delete(PATH)
async def drop(task_id: str, user: Fetcher, db: Db) -> Response:
    """They are not needed any more; said again it changes nothing."""
    async with changing(db) as change:
        await require_task(change.conn, task_id)
        await task_files.drop(change.conn, task_id)
    return JsonResponse({})
