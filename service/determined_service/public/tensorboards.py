"""What a TensorBoard's process asks: the files to copy. Ours, beside Determined's API."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from determined.common.wire.kinds import TaskKind
from determined_service.access.dependencies import may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.json import JsonResponse
from determined_service.lifecycle.kinds import tensorboard
from determined_service.lifecycle.kinds.table import launched_kinds
from determined_service.views.launched import get_launched
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Tasks", "/api/v1")

Reporter = Annotated[Principal, may(Action.REPORT, Kind.TASK, "report for")]


@router.get("/tensorboards/{task_id}/sources")
async def tensorboard_sources(
    task_id: str, process: Reporter, db: Db, settings: SettingsOf
) -> Response:
    """The files that a TensorBoard shows, and the settings of their storage: for its own process."""
    kind = launched_kinds()[TaskKind.TENSORBOARD.name]
    async with db.tx() as conn:
        row = await get_launched(conn, kind, task_id)
        found = await tensorboard.sources(conn, row.data or {}, row.owner_id, settings)
    return JsonResponse({"sources": found})
