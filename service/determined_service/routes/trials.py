"""What a training process asks and reports about its trial (and killing it)."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from determined_service.api.state import Db, HubOf
from determined_service.auth import AllocationOrUser
from determined_service.control import trials as trialing
from determined_service.control.change import changing, reader
from determined_service.errors import BadRequest
from determined_service.json import JsonResponse
from determined_service.request import body
from determined_service.routes.waiting import poll, wait_seconds

router = APIRouter(prefix="/api/v1/trials", tags=["Trials"])

OPERATION_WAIT_S = 20.0
"""How long a trial waits for the searcher, unless it says otherwise, before it gives its slots back."""
PROGRESS_EVENT_S = 2.0
"""Least time between two progress events of one trial in the searcher's inbox."""

_told: dict[int, float] = {}


@router.get("/{trial_id}/searcher/operation")
async def get_operation(
    request: Request,
    trial_id: int,
    principal: AllocationOrUser,
    db: Db,
    hub: HubOf,
    timeout_s: float | None = None,
) -> Response:
    """What the trial is to do now. ``completed``: nothing (more), so it should exit.

    Waits while the searcher has not answered the trial's last report.
    """
    principal.require_trial(trial_id)
    watch = trialing.OperationWatch(trial_id)

    async def check() -> dict[str, Any] | None:
        async with reader(db).connect() as conn:
            return await watch.check(conn)

    found = await check()
    if found is None:
        timeout = wait_seconds(timeout_s, default=OPERATION_WAIT_S)
        topics = [f"trial:{trial_id}", f"search:{watch.experiment_id}"]
        found = await poll(request, hub, topics, check, timeout)
    return JsonResponse(found or watch.last)


@router.post("/{trial_id}/searcher/completed_operation")
async def complete_operation(
    request: Request, trial_id: int, principal: AllocationOrUser, db: Db
) -> Response:
    """``{"op": {"length": 100}, "searcherMetric": 0.5}``; NaN and infinities as strings."""
    principal.require_trial(trial_id)
    given = await body(request)
    try:
        length = int(given["op"]["length"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest('send {"op": {"length": <number>}, "searcherMetric": …}') from error
    async with changing(db) as change:
        metric = given.get("searcherMetric")
        await trialing.complete_operation(change, trial_id, length, metric, sender=principal.sender)
    return JsonResponse({})


@router.post("/{trial_id}/progress")
async def report_progress(
    request: Request, trial_id: int, principal: AllocationOrUser, db: Db
) -> Response:
    """A bare number: length units so far (@22). ``{"progress": p, …}``: a fraction 0..1 (@38)."""
    principal.require_trial(trial_id)
    given = await body(request)
    fraction = isinstance(given, dict)
    if isinstance(given, dict):
        given = given.get("progress")
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise BadRequest(f"progress must be a number, not {given!r}")
    now = time.monotonic()
    tell = now - _told.get(trial_id, -PROGRESS_EVENT_S) >= PROGRESS_EVENT_S
    if tell:
        for old in [key for key, at in _told.items() if now - at > PROGRESS_EVENT_S]:
            del _told[old]
        _told[trial_id] = now
    async with changing(db) as change:
        await trialing.report_progress(
            change,
            trial_id,
            float(given),
            fraction=fraction,
            tell_search=tell,
            sender=principal.sender,
        )
    return JsonResponse({})


@router.post("/{trial_id}/early_exit")
async def report_early_exit(
    request: Request, trial_id: int, principal: AllocationOrUser, db: Db
) -> Response:
    """``{"reason": "EXITED_REASON_INVALID_HP"}``; the process is expected to exit soon."""
    principal.require_trial(trial_id)
    given = await body(request)
    async with changing(db) as change:
        reason = str(given.get("reason", ""))
        await trialing.report_early_exit(change, trial_id, reason, sender=principal.sender)
    return JsonResponse({})


@router.post("/{trial_id}/runner/metadata")
async def set_runner_metadata(
    request: Request, trial_id: int, principal: AllocationOrUser, db: Db
) -> Response:
    """``{"state": "training"}``: the status that the training code shows."""
    principal.require_trial(trial_id)
    given = await body(request)
    async with changing(db) as change:
        state = str(given.get("state", ""))
        await trialing.set_runner_state(change, trial_id, state, sender=principal.sender)
    return JsonResponse({})


@router.post("/{trial_id}/kill")
async def kill(trial_id: int, principal: AllocationOrUser, db: Db) -> Response:
    """Kills the trial; its experiment's search goes on."""
    async with changing(db) as change:
        await trialing.kill(change, trial_id)
    return JsonResponse({})
