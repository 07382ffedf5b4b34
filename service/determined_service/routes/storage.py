"""What those who reach the checkpoint storage tell the service of it: legs and the flow that deletes."""

from __future__ import annotations

import uuid

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from determined_service.api.state import Db, SettingsOf
from determined_service.auth import AgentAuth
from determined_service.control import deletions as deleting
from determined_service.control.change import changing, reader
from determined_service.control.damage import give_up_checkpoint
from determined_service.json import JsonResponse

router = APIRouter(prefix="/internal/v1", tags=["Checkpoints"])


class Damage(BaseModel):
    """The checkpoint, and what is wrong with it in words."""

    uuid: uuid.UUID
    reason: str


@router.post("/trials/{trial_id}/damaged_checkpoint")
async def damaged_checkpoint(trial_id: int, given: Damage, agent: AgentAuth, db: Db) -> Response:
    """The checkpoint that the trial was to start from is not whole; answers what to start from."""
    async with changing(db) as change:
        found = await give_up_checkpoint(change, trial_id, given.uuid, given.reason)
    return JsonResponse(found)


@router.get("/deletions/{deletion_id}")
async def deletion_work(
    deletion_id: int, agent: AgentAuth, db: Db, settings: SettingsOf
) -> Response:
    """What is to be deleted, by storage."""
    async with reader(db).connect() as conn:
        found = await deleting.work(conn, deletion_id, str(settings.cluster_id))
    return JsonResponse(found)


class Deleted(BaseModel):
    """By checkpoint, the files that are left (path to bytes); none: it is gone."""

    left: dict[uuid.UUID, dict[str, int]]


@router.post("/deletions/{deletion_id}/deleted")
async def note_deleted(deletion_id: int, given: Deleted, agent: AgentAuth, db: Db) -> Response:
    """Files are gone from the storage; also a sign of life."""
    async with changing(db) as change:
        await deleting.note_deleted(change, deletion_id, given.left)
    return JsonResponse({})


class DeletionEnd(BaseModel):
    """``error``: what could not be deleted, and why."""

    error: str | None = None


@router.post("/deletions/{deletion_id}/end")
async def end_deletion(deletion_id: int, given: DeletionEnd, agent: AgentAuth, db: Db) -> Response:
    """Everything was tried."""
    async with changing(db) as change:
        await deleting.end(change, deletion_id, given.error)
    return JsonResponse({})


class Names(BaseModel):
    """Checkpoints found in a storage."""

    uuids: list[uuid.UUID]


@router.post("/checkpoints/known")
async def known_checkpoints(given: Names, agent: AgentAuth, db: Db) -> Response:
    """Those that there is a row of."""
    async with reader(db).connect() as conn:
        found = await deleting.known_checkpoints(conn, given.uuids)
    return JsonResponse({"uuids": sorted(map(str, found))})
