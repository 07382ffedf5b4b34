"""Reports from legs and flows about checkpoint storage."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from determined.common.wire import paths, serving
from determined.common.wire.deletions import CheckpointNames, Deleted, DeletionEnd
from determined.common.wire.legs import DamagedCheckpoint
from determined.common.wire.serving import Served
from determined_service.access.dependencies import DeletionRunAuth, may_serve
from determined_service.access.targets import Kind
from determined_service.base.bounds import BigId, Id
from determined_service.base.json import JsonResponse
from determined_service.deleting import deletions as deleting
from determined_service.deleting.damage import give_up_checkpoint, may_give_up, start_from
from determined_service.state.change import changing, reader
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Checkpoints")


@router.post(paths.DAMAGED_CHECKPOINT)
async def damaged_checkpoint(
    trial_id: Id,
    given: DamagedCheckpoint,
    served: Annotated[Served | None, may_serve(Kind.ALLOCATION, serving.ALLOCATION)],
    db: Db,
) -> Response:
    """The checkpoint to start from is damaged; answers the checkpoint to start from instead, the same one if
    there is no other. One of another user stays as it is."""
    async with changing(db) as change:
        if served is None or await may_give_up(change, served.id, trial_id, given.uuid):
            found = await give_up_checkpoint(change, trial_id, given.uuid, given.reason)
        else:
            found = await start_from(change, trial_id)
    return JsonResponse(found)


@router.get(paths.DELETION)
async def deletion_work(
    deletion_id: BigId, run: DeletionRunAuth, db: Db, settings: SettingsOf
) -> Response:
    """The things to delete, by storage."""
    async with reader(db).connect() as conn:
        found = await deleting.work(conn, deletion_id, settings)
    return JsonResponse(found)


@router.post(paths.DELETED)
async def note_deleted(
    deletion_id: BigId, given: Deleted, run: DeletionRunAuth, db: Db
) -> Response:
    """Files were deleted from the storage; the report is also a sign of life."""
    async with changing(db) as change:
        await deleting.note_deleted(change, deletion_id, given.left)
    return JsonResponse({})


@router.post(paths.DELETION_END)
async def end_deletion(
    deletion_id: BigId, given: DeletionEnd, run: DeletionRunAuth, db: Db
) -> Response:
    """The run has tried to delete everything."""
    async with changing(db) as change:
        await deleting.end(change, deletion_id, given.error)
    return JsonResponse({})


@router.post(paths.KNOWN_CHECKPOINTS)
async def known_checkpoints(
    given: CheckpointNames,
    served: Annotated[Served | None, may_serve(Kind.DELETION, serving.DELETION)],
    db: Db,
) -> Response:
    """The checkpoints that the service knows. Every deletion may ask: it finds files of which it knows only
    the names."""
    async with reader(db).connect() as conn:
        found = await deleting.known_checkpoints(conn, given.uuids)
    return JsonResponse(CheckpointNames(sorted(found)))
