"""Reports of checkpoints: stored ones, and the deletion of their files."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from determined_service.access.dependencies import Gate, may, may_named
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.errors import BadRequest, NotFound
from determined_service.base.ids import parse_uuid
from determined_service.base.json import JsonResponse
from determined_service.deleting import remains
from determined_service.ingest.values import replace_nul
from determined_service.lifecycle import checkpoints as checkpointing
from determined_service.state.change import changing
from determined_service.views.checkpoints import get_checkpoint
from determined_service.views.values import parse_time
from determined_service.web.request import body, json_example
from determined_service.web.state import Db, ViewerOf

router = APIRouter(prefix="/api/v1/checkpoints", tags=["Checkpoints"])

_CHECKPOINT = {
    "uuid": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11",
    "taskId": "1.2f6c7d2e",
    "allocationId": "1.2f6c7d2e.1",
    "reportTime": "2026-11-21T13:00:00.000000Z",
    "resources": {"model.pt": "1000"},
    "checksums": {"model.pt": "sha256:<hex>"},
    "metadata": {"steps_completed": 100},
    "state": "STATE_COMPLETED",
}


@router.post("", openapi_extra=json_example(_CHECKPOINT))
async def report_checkpoint(
    request: Request,
    gate: Annotated[Gate, may_named(Action.REPORT, Kind.ALLOCATION, "report checkpoints of")],
    db: Db,
) -> Response:
    """Stores the record of a checkpoint whose files are in storage (`v1Checkpoint`, with the additional
    fields `checksums`, and `storage` if it is not the experiment's).

    The report may be repeated. Reported by a trial's allocation, the checkpoint becomes the trial's latest,
    from which the next leg starts.
    """
    principal, report = await _admit(gate, _read(await body(request)))
    async with changing(db) as change:
        await checkpointing.report(change, report, principal)
    return JsonResponse({})


def _read(given: Any) -> checkpointing.Report:
    if not isinstance(given, dict) or "uuid" not in given:
        raise BadRequest("a checkpoint must be an object with a uuid")
    metadata = replace_nul(given.get("metadata") or {})
    steps = metadata.get("steps_completed", 0)
    if type(steps) is not int or steps < 0:
        raise BadRequest(f"metadata.steps_completed must be a whole number, not {steps!r}")
    state = str(given.get("state") or "STATE_COMPLETED").removeprefix("STATE_")
    if state not in checkpointing.STATES:
        raise BadRequest(f"unknown state {given['state']!r}")
    storage = given.get("storage")
    if storage is not None and not isinstance(storage, dict):
        raise BadRequest(f"storage must be a checkpoint_storage section, not {storage!r}")
    time = given.get("reportTime")
    return checkpointing.Report(
        uuid=parse_uuid(str(given["uuid"]), "checkpoint"),
        state=state,
        steps_completed=steps,
        resources=_sizes(given.get("resources")),
        checksums=given.get("checksums") or {},
        metadata=metadata,
        storage=storage,
        report_time=parse_time(time, "reportTime") if time else None,
        allocation_id=given.get("allocationId") or None,
        task_id=given.get("taskId"),
    )


async def _admit(
    gate: Gate, report: checkpointing.Report
) -> tuple[Principal, checkpointing.Report]:
    """The reporting subject and its permission: an allocation may report for itself, a user also for a task
    (an unmanaged trial, which has no allocation).
    """
    own = gate.subject.allocation
    if own is not None:
        report = replace(report, allocation_id=report.allocation_id or own.id)
    if report.allocation_id is not None:
        try:
            subject = await gate.admit(report.allocation_id)
            # Only that was looked at: it must not fall back on a task, should the allocation be gone.
            return subject, report if subject.admin else replace(report, task_id=None)
        except NotFound:
            if report.task_id is None:
                raise
    if report.task_id is None:
        return await gate.admit(), report
    return await gate.admit(report.task_id, kind=Kind.TASK), replace(report, allocation_id=None)


def _sizes(given: Any) -> dict[str, int]:
    try:
        return {replace_nul(path): int(size) for path, size in (given or {}).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise BadRequest(f"resources must be paths and their sizes in bytes: {error}") from error


@router.patch("")
async def patch_checkpoints(
    request: Request,
    gate: Annotated[Gate, may_named(Action.CHANGE, Kind.CHECKPOINT, "change the files of")],
    db: Db,
) -> Response:
    """Files were deleted: `{"checkpoints": [{"uuid", "resources": {"resources": {path: size}}}]}`.

    Without remaining resources the checkpoint is DELETED, with fewer than before PARTIALLY_DELETED. Then no
    leg starts from it any more; the next leg starts from the latest complete checkpoint.
    """
    given = await body(request)
    left = {
        parse_uuid(str(one.get("uuid")), "checkpoint"): (
            None if one.get("resources") is None else _sizes(one["resources"].get("resources"))
        )
        for one in given.get("checkpoints", [])
    }
    if left:
        await gate.admit(*left)
        async with changing(db) as change:
            await remains.note_left(change, left)
    return JsonResponse({})


@router.post("/{uuid}/metadata")
async def replace_metadata(
    uuid: str,
    request: Request,
    user: Annotated[Principal, may(Action.CHANGE, Kind.CHECKPOINT, "change the metadata of")],
    db: Db,
    viewer_of: ViewerOf,
) -> Response:
    """`{"checkpoint": {"metadata": {…}}}` replaces the metadata."""
    given = (await body(request)).get("checkpoint") or {}
    metadata = given.get("metadata")
    if not isinstance(metadata, dict):
        raise BadRequest("checkpoint.metadata must be an object")
    wanted = parse_uuid(uuid, "checkpoint")
    async with changing(db) as change:
        await checkpointing.replace_metadata(change, wanted, replace_nul(metadata))
        found = await get_checkpoint(change.conn, wanted, viewer_of(user))
        return JsonResponse({"checkpoint": found})
