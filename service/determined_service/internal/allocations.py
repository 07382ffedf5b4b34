"""Routes of supervisors: reports about their processes, and model definitions."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import Request
from starlette.responses import Response

from determined.common.wire import paths, serving
from determined.common.wire.doors import DoorState
from determined.common.wire.legs import Exited, Notice, PortState, Started, Starting
from determined.common.wire.returned import Returned
from determined.common.wire.serving import Served
from determined_service.access.dependencies import SupervisorAuth, may_serve
from determined_service.access.targets import Kind
from determined_service.base.addresses import reached_at
from determined_service.base.bounds import Id
from determined_service.base.errors import NotFound, OverQuota, TooLarge
from determined_service.base.json import JsonResponse
from determined_service.base.streams import Stream
from determined_service.lifecycle import doors, notices, ports, starts, task_files
from determined_service.lifecycle.exits import LegExit
from determined_service.lifecycle.legs import definition_of_leg, end_leg, start_leg
from determined_service.state.change import changing, reader
from determined_service.views.archives import find_archive
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Agents")


@router.post(paths.STARTING)
async def starting(
    allocation_id: str, given: Starting, supervisor: SupervisorAuth, db: Db
) -> Response:
    """A supervisor is about to start the process. 409: another start of it was there before, or it has
    ended."""
    async with changing(db) as change:
        await starts.take(change, allocation_id, given.node, given.start_id)
    return JsonResponse({})


@router.post(paths.NOTICE)
async def notice(allocation_id: str, given: Notice, supervisor: SupervisorAuth, db: Db) -> Response:
    """The machine under the process goes away: it is preempted. 409: it has ended, or another start of it
    counts."""
    async with changing(db) as change:
        await notices.note(change, allocation_id, given)
    return JsonResponse({})


@router.post(paths.RUNNING)
async def running(
    request: Request,
    allocation_id: str,
    given: Started,
    supervisor: SupervisorAuth,
    db: Db,
    settings: SettingsOf,
) -> Response:
    """The process has started. 409: it must not run (any more) and must be killed. 400: its ports are not
    those that the allocation was given."""
    async with changing(db) as change:
        await start_leg(
            change, allocation_id, given.pid, given.agent_id, given.node, given.start_id
        )
        found = given.ports
        # An agent is believed: of the release before, the supervisors have the agents' token.
        if found and supervisor.serves is not None:
            way = (given.address, reached_at(request))
            found = await ports.require_given(change.conn, allocation_id, found, way, settings)
        if found:
            await ports.register(change, allocation_id, given.address, found)
    return JsonResponse({})


@router.post(paths.PORT)
async def port(
    allocation_id: str, given: PortState, supervisor: SupervisorAuth, db: Db
) -> Response:
    """A port of the process can be reached (any more). 409: the allocation does not run yet, or has ended."""
    async with changing(db) as change:
        await ports.set_state(change, allocation_id, given)
    return JsonResponse({})


@router.get(paths.DOOR_ORDER)
async def door_order(
    allocation_id: str, node: Id, supervisor: SupervisorAuth, db: Db, settings: SettingsOf
) -> Response:
    """Whether the node's supervisor is to open its door."""
    secret = settings.agent_token.get_secret_value()
    async with reader(db).connect() as conn:
        return JsonResponse(await doors.order(conn, allocation_id, node, secret))


@router.post(paths.DOOR)
async def door(
    request: Request, allocation_id: str, given: DoorState, supervisor: SupervisorAuth, db: Db
) -> Response:
    """The door is open, or is to be closed. 409: nobody asks for it, or, before it is closed, somebody does
    again. 400: it is open elsewhere than on its agent."""
    async with changing(db) as change:
        if given.open and supervisor.serves is not None:
            way = (given.address, reached_at(request))
            await ports.require_door(change.conn, allocation_id, given, way)
        await doors.set_state(change, allocation_id, given)
    return JsonResponse({})


@router.put(paths.TASK_FILE_PIECE)
async def file_piece(
    request: Request, allocation_id: str, number: Id, supervisor: SupervisorAuth, db: Db
) -> Response:
    """A piece of the archive of what the task leaves behind. 409: it returns no files, or has ended."""
    piece = await request.body()
    async with changing(db) as change:
        await task_files.store_piece(change.conn, allocation_id, number, piece)
    return JsonResponse({})


@router.post(paths.TASK_FILES)
async def files(
    allocation_id: str, given: Returned, supervisor: SupervisorAuth, db: Db, settings: SettingsOf
) -> Response:
    """All of it is here. 413: it is more than its owner's quota allows, and nothing of it is kept."""
    try:
        async with changing(db) as change:
            await task_files.finish(change.conn, allocation_id, given, settings.cluster.quotas)
    except OverQuota as refusal:
        async with changing(db) as change:
            await task_files.drop_of(change.conn, allocation_id)
        # A supervisor repeats what is forbidden; this goes into the task's log.
        raise TooLarge(refusal.message) from None
    return JsonResponse({})


@router.post(paths.EXIT)
async def exited(allocation_id: str, given: Exited, supervisor: SupervisorAuth, db: Db) -> Response:
    """The process is gone and its logs are shipped. The first report counts. 409: another start of it
    counts."""
    end = LegExit(given.kind, given.exit_code, given.signal, given.reason, given.leaving)
    async with changing(db) as change:
        await end_leg(
            change,
            allocation_id,
            end,
            node=given.node,
            agent_id=given.agent_id,
            start_id=given.start_id,
        )
    return JsonResponse({})


@router.get(paths.MODEL_DEFINITION)
async def model_definition(
    hash: str,
    served: Annotated[Served | None, may_serve(Kind.ALLOCATION, serving.ALLOCATION)],
    db: Db,
) -> Response:
    """A model definition's files as tar.gz; to a supervisor that of its own leg, until the leg has ended."""
    archive = await find_archive(
        db, sa.literal(hash) if served is None else definition_of_leg(served.id, hash)
    )
    if archive is None:
        if served is not None:
            raise NotFound(
                f"model definition {hash} is not that of allocation {served.id}, or that has ended"
            )
        raise NotFound(f"model definition {hash} does not exist")
    length = {"Content-Length": str(archive.size)}
    pieces = archive.pieces(db)
    return Stream(pieces, media_type="application/gzip", headers=length)
