"""Routes of supervisors: reports about their processes, and model definitions."""

from __future__ import annotations

import sqlalchemy as sa
from fastapi import APIRouter
from starlette.responses import Response

from determined.common.wire import paths
from determined.common.wire.legs import Exited, Started
from determined_registry.database.tables import model_definitions
from determined_service.access.dependencies import AgentAuth
from determined_service.base.errors import NotFound
from determined_service.base.json import JsonResponse
from determined_service.lifecycle.exits import Exit
from determined_service.lifecycle.legs import end_leg, start_leg
from determined_service.state.change import changing, reader
from determined_service.web.state import Db

router = APIRouter(tags=["Agents"])


@router.post(paths.RUNNING)
async def running(allocation_id: str, given: Started, agent: AgentAuth, db: Db) -> Response:
    """The process has started. 409: it must not run (any more) and must be killed."""
    async with changing(db) as change:
        await start_leg(change, allocation_id, given.pid)
    return JsonResponse({})


@router.post(paths.EXIT)
async def exited(allocation_id: str, given: Exited, agent: AgentAuth, db: Db) -> Response:
    """The process is gone and its logs are shipped. The first report counts."""
    end = Exit(given.kind, given.exit_code, given.signal, given.reason)
    async with changing(db) as change:
        await end_leg(change, allocation_id, end)
    return JsonResponse({})


@router.get(paths.MODEL_DEFINITION)
async def model_definition(hash: str, agent: AgentAuth, db: Db) -> Response:
    """A model definition's files as tar.gz."""
    async with reader(db).connect() as conn:
        found = await conn.execute(
            sa.select(model_definitions.c.archive).where(model_definitions.c.hash == hash)
        )
    archive = found.scalar_one_or_none()
    if archive is None:
        raise NotFound(f"model definition {hash} does not exist")
    return Response(bytes(archive), media_type="application/gzip")
