"""The files of notebooks' working directories: keep, list and delete them. Ours, beside Determined's API."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field
from starlette.responses import Response

from determined.common.wire import limits
from determined.common.wire.kinds import TaskKind
from determined_registry.database.tables import tasks
from determined_service.access.dependencies import TaskReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.json import JsonResponse
from determined_service.deleting import notebook_files
from determined_service.lifecycle.kinds import notebook
from determined_service.lifecycle.kinds.table import launched_kinds
from determined_service.state.change import changing
from determined_service.views.launched import get_launched
from determined_service.views.paging import Limit, Offset, fetch_page
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Tasks", "/api/v1")

Reporter = Annotated[Principal, may(Action.REPORT, Kind.TASK, "report for")]
Deleter = Annotated[Principal, may(Action.CHANGE, Kind.TASK, "delete the files of")]


@router.get("/notebook-files")
async def list_notebook_files(
    user: TaskReader, db: Db, everybody: bool = False, offset: Offset = 0, limit: Limit = 0
) -> Response:
    """The ended notebooks whose files are kept, the latest first: the caller's own, or everybody's.

    `bytes` is null where a notebook was killed before it had counted them."""
    chosen = notebook_files.select_kept(None if everybody else user.user_id)
    chosen = chosen.order_by(tasks.c.end_time.desc(), tasks.c.id)
    async with db.tx() as conn:
        rows, pages = await fetch_page(conn, chosen, offset, limit)
    found = [
        {
            "id": row.id,
            "username": row.username,
            "description": row.name,
            "endTime": row.end_time,
            "bytes": row.kept_bytes,
        }
        for row in rows
    ]
    return JsonResponse({"notebookFiles": found, "pagination": pages})


@router.delete("/notebook-files/{task_id}")
async def delete_notebook_files(task_id: str, user: Deleter, db: Db) -> Response:
    """Requests the deletion of an ended notebook's files; answers `deletionId`."""
    async with changing(db) as change:
        deletion_id = await notebook_files.delete(change, task_id, owner_id=user.user_id)
    return JsonResponse({"deletionId": deletion_id})


@router.get("/notebooks/{task_id}/files")
async def find_storage(task_id: str, process: Reporter, db: Db, settings: SettingsOf) -> Response:
    """The storage of the files in a notebook's working directory: for its own process."""
    async with db.tx() as conn:
        row = await get_launched(conn, launched_kinds()[TaskKind.NOTEBOOK.name], task_id)
    return JsonResponse(notebook.files(row, settings))


class KeptBytes(BaseModel):
    """The size of all files that a notebook is about to keep."""

    bytes: int = Field(ge=0, le=limits.INT64)


@router.put("/notebooks/{task_id}/files")
async def note_notebook_files(
    task_id: str, given: KeptBytes, process: Reporter, db: Db, settings: SettingsOf
) -> Response:
    """The bytes that a notebook's own process is about to keep; 403 if its owner would keep too much."""
    async with changing(db) as change:
        await notebook.note_kept(change.conn, task_id, given.bytes, settings.cluster.quotas)
    return JsonResponse({})
