"""Reports of checkpoints: stored ones, and the deletion of their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated, Any
from uuid import UUID

from fastapi import Request
from starlette.responses import Response

from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_registry import permitted
from determined_service.access.dependencies import Admission, may, may_named
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.checks import check_bytes, check_int, check_text
from determined_service.base.errors import BadRequest, NotFound
from determined_service.base.ids import parse_uuid
from determined_service.base.json import JsonResponse, dumps
from determined_service.deleting import remains
from determined_service.ingest.values import replace_nul
from determined_service.lifecycle import checkpoints as checkpointing
from determined_service.state.change import changing
from determined_service.views.checkpoints import get_checkpoint
from determined_service.views.values import parse_time
from determined_service.web.request import json_example, object_body, off_loop
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf, ViewerOf

STATES = sorted(checkpointing.STATES)
MOST_BYTES = 2**53
"""Of one file."""

router = Router("Checkpoints", "/api/v1/checkpoints")

_CHECKPOINT = {
    "uuid": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11",
    "taskId": "1.2f6c7d2e",
    "allocationId": "1.2f6c7d2e.1",
    "reportTime": "2026-11-21T13:00:00.000000Z",
    "resources": {"model.pt": "1000"},
    "checksums": {"model.pt": "sha256:<hex>"},
    "executable": [],
    "metadata": {"steps_completed": 100},
    "state": "STATE_COMPLETED",
}


@router.post("", openapi_extra=json_example(_CHECKPOINT))
async def report_checkpoint(
    request: Request,
    admission: Annotated[
        Admission, may_named(Action.REPORT, Kind.ALLOCATION, "report checkpoints of")
    ],
    db: Db,
    settings: SettingsOf,
) -> Response:
    """Stores the record of a checkpoint whose files are in storage (`v1Checkpoint`, with the additional
    fields `checksums`, `executable`: the paths of programs, and `storage` if it is not the experiment's).

    The report may be repeated. Reported by a trial's allocation, the checkpoint becomes the trial's latest,
    from which the next leg starts.
    """
    given = await object_body(request, nul=True, large=True)
    principal, report = await _admit(admission, await off_loop(request, _read, given))
    if permitted.is_clusters_own(report.storage, settings.checkpoint_storage):
        raise BadRequest(f"storage: {permitted.KEPT}")
    async with changing(db) as change:
        await checkpointing.report(change, report, principal)
    return JsonResponse({})


def _read(given: Any) -> checkpointing.CheckpointReport:
    if not isinstance(given, dict) or "uuid" not in given:
        raise BadRequest("a checkpoint must be an object with a uuid")
    metadata = _metadata(given.get("metadata") or {}, "metadata")
    steps = check_int(metadata.get("steps_completed", 0), "metadata.steps_completed")
    state = str(given.get("state") or "STATE_COMPLETED").removeprefix("STATE_")
    if state not in checkpointing.STATES:
        raise BadRequest(f"state: expected one of {', '.join(STATES)}, found {show(state)}")
    storage = given.get("storage")
    if storage is not None and not isinstance(storage, dict):
        raise BadRequest(f"storage must be a checkpoint_storage section, not {show(storage)}")
    time = given.get("reportTime")
    resources = _sizes(given.get("resources"))
    return checkpointing.CheckpointReport(
        uuid=parse_uuid(str(given["uuid"]), "checkpoint"),
        state=state,
        steps_completed=steps,
        resources=resources,
        checksums=_checksums(given.get("checksums")),
        executable=_executable(given.get("executable"), resources),
        metadata=metadata,
        storage=None if storage is None else replace_nul(storage),
        report_time=parse_time(time, "reportTime") if time else None,
        allocation_id=_id(given.get("allocationId"), "allocationId"),
        task_id=_id(given.get("taskId"), "taskId"),
    )


async def _admit(
    admission: Admission, report: checkpointing.CheckpointReport
) -> tuple[Principal, checkpointing.CheckpointReport]:
    """The reporting subject and its permission: an allocation may report for itself, a user also for a task
    (an unmanaged trial, which has no allocation).
    """
    own = admission.subject.allocation
    if own is not None:
        report = replace(report, allocation_id=report.allocation_id or own.id)
    if report.allocation_id is not None:
        try:
            subject = await admission.admit(report.allocation_id)
            # Only that was looked at: it must not fall back on a task, should the allocation be gone.
            return subject, report if subject.admin else replace(report, task_id=None)
        except NotFound:
            if report.task_id is None:
                raise
    if report.task_id is None:
        return await admission.admit(), report
    return await admission.admit(report.task_id, kind=Kind.TASK), replace(
        report, allocation_id=None
    )


def _sizes(given: Any) -> dict[str, int]:
    try:
        sizes = {replace_nul(path): int(size) for path, size in (given or {}).items()}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        what = f"resources must be paths and their sizes in bytes: {str(error)[:200]}"
        raise BadRequest(what) from error
    if len(sizes) > limits.CHECKPOINT_FILES:
        raise BadRequest(
            f"resources: {len(sizes)} files found, at most {limits.CHECKPOINT_FILES} are allowed in a "
            "checkpoint; put many small files into an archive"
        )
    for path, size in sizes.items():
        if not _is_inside(path):
            raise BadRequest(
                f"resources: {show(path)} is not a relative path within the checkpoint; give paths without "
                "'..' that do not begin with '/'"
            )
        if len(path) > limits.PATH_CHARS or not 0 <= size <= MOST_BYTES:
            check_text(path, "a path of resources", limits.PATH_CHARS)
            check_int(size, f"resources.{path[:80]}", most=MOST_BYTES)
    check_int(sum(sizes.values()), "the sum of resources", most=limits.INT64)
    return sizes


def _is_inside(path: Any) -> bool:
    parts = PurePosixPath(path).parts if isinstance(path, str) else ()
    return bool(parts) and parts[0] != "/" and ".." not in parts


def _checksums(given: Any) -> dict[str, str]:
    if not isinstance(given or {}, dict):
        raise BadRequest(f"checksums must be an object of paths and checksums, not {show(given)}")
    if len(given or {}) > limits.CHECKPOINT_FILES:
        raise BadRequest(
            f"checksums: {len(given)} files found, at most {limits.CHECKPOINT_FILES} are allowed"
        )
    return dict(replace_nul(given or {}))


def _executable(given: Any, resources: dict[str, int]) -> list[str]:
    paths = replace_nul(given or [])
    if not isinstance(paths, list):
        raise BadRequest(f"executable must be a list of paths, not {show(given)}")
    for path in paths:
        if not isinstance(path, str) or path not in resources or path.endswith("/"):
            raise BadRequest(f"executable: {show(path)} is not the path of a file in resources")
    return sorted(set(paths))


def _metadata(given: Any, path: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadRequest(f"{path} must be an object, not {show(given)}")
    found: dict[str, Any] = replace_nul(given)
    check_bytes(len(dumps(found)), limits.METADATA_BYTES, path)
    return found


def _id(given: Any, path: str) -> str | None:
    return None if not given else check_text(given, path)


@router.patch("")
async def patch_checkpoints(
    request: Request,
    admission: Annotated[
        Admission, may_named(Action.CHANGE, Kind.CHECKPOINT, "change the files of")
    ],
    db: Db,
) -> Response:
    """Files were deleted: `{"checkpoints": [{"uuid", "resources": {"resources": {path: size}}}]}`.

    Without remaining resources the checkpoint is DELETED, with fewer than before PARTIALLY_DELETED. Then no
    leg starts from it any more; the next leg starts from the latest complete checkpoint.
    """
    given = await object_body(request, nul=True, large=True)
    try:
        left = await off_loop(request, _left, given.get("checkpoints", []))
    except (AttributeError, TypeError) as error:
        raise BadRequest(
            'send {"checkpoints": [{"uuid": …, "resources": {"resources": {<path>: <bytes>}}}]}'
        ) from error
    if len(left) > limits.MANY_IDS:
        raise BadRequest(f"checkpoints: {len(left)} found, at most {limits.MANY_IDS} are allowed")
    if left:
        await admission.admit(*left)
        async with changing(db) as change:
            await remains.note_left(change, left)
    return JsonResponse({})


def _left(given: Any) -> dict[UUID, dict[str, int] | None]:
    return {
        parse_uuid(str(one.get("uuid")), "checkpoint"): (
            None if one.get("resources") is None else _sizes(one["resources"].get("resources"))
        )
        for one in given
    }


Changer = Annotated[Principal, may(Action.CHANGE, Kind.CHECKPOINT, "change the metadata of")]


@router.post("/{uuid}/metadata")
async def replace_metadata(
    uuid: str, request: Request, user: Changer, db: Db, viewer_of: ViewerOf
) -> Response:
    """`{"checkpoint": {"metadata": {…}}}` replaces the metadata as a whole."""
    given = (await object_body(request, nul=True)).get("checkpoint") or {}
    if not isinstance(given, dict):
        raise BadRequest(f"checkpoint must be an object, not {show(given)}")
    metadata = _metadata(given.get("metadata"), "checkpoint.metadata")
    wanted = parse_uuid(uuid, "checkpoint")
    async with changing(db) as change:
        await checkpointing.replace_metadata(change, wanted, metadata)
        found = await get_checkpoint(change.conn, wanted, viewer_of(user))
        return JsonResponse({"checkpoint": found})


@router.patch(
    "/{uuid}/metadata",
    openapi_extra=json_example({"metadata": {"accuracy": 0.97}, "remove": ["draft"]}),
)
async def change_metadata(
    uuid: str, request: Request, user: Changer, db: Db, viewer_of: ViewerOf
) -> Response:
    """Sets keys of the `metadata`, and removes those named in `remove`; the others stay, so that several may
    note something at once."""
    given = await object_body(request, nul=True)
    metadata = _metadata(given.get("metadata") or {}, "metadata")
    remove = given.get("remove") or []
    if not isinstance(remove, list) or not all(isinstance(key, str) for key in remove):
        raise BadRequest(f"remove must be a list of keys, not {show(remove)}")
    wanted = parse_uuid(uuid, "checkpoint")
    async with changing(db) as change:
        await checkpointing.change_metadata(change, wanted, metadata, set(replace_nul(remove)))
        found = await get_checkpoint(change.conn, wanted, viewer_of(user))
        return JsonResponse({"checkpoint": found})
