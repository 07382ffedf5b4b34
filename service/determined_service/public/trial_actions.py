"""Requests and reports of a training process about its trial, and killing a trial."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request
from starlette.responses import Response

from determined.common.wire.checks import show
from determined_service.access.dependencies import TrialReporter, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, Seconds
from determined_service.base.checks import check_int, check_text
from determined_service.base.errors import BadRequest
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import trials as trialing
from determined_service.lifecycle.progress import ProgressEvents
from determined_service.state.change import changing, reader
from determined_service.web.request import body, object_body
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf
from determined_service.web.waiting import poll, wait_seconds

router = Router("Trials", "/api/v1/trials")

OPERATION_WAIT_S = 20.0
"""Seconds that a trial waits for the searcher by default, before it gives its slots back."""


@router.get("/{trial_id}/searcher/operation")
async def get_operation(
    request: Request,
    trial_id: Id,
    principal: TrialReporter,
    db: Db,
    hub: HubOf,
    timeout_s: Seconds | None = None,
) -> Response:
    """The operation that the trial must do now. ``completed``: there are no more operations, so it should
    exit; ``reason`` says why (``NoOperation``).

    Waits while the searcher has not answered the trial's last report.
    """
    watch = trialing.OperationWatch(trial_id)

    async def check() -> dict[str, Any] | None:
        async with reader(db).connect() as conn:
            return await watch.check(conn)

    found = await check()
    if found is None:
        timeout = wait_seconds(timeout_s, default=OPERATION_WAIT_S)
        found = await poll(request, hub, watch.topics, check, timeout)
    return JsonResponse(found or watch.last)


@router.post("/{trial_id}/searcher/completed_operation")
async def complete_operation(
    request: Request, trial_id: Id, principal: TrialReporter, db: Db
) -> Response:
    """``{"op": {"length": 100}, "searcherMetric": 0.5}``; NaN and infinities as strings."""
    given = await object_body(request)
    try:
        length = int(given["op"]["length"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadRequest('send {"op": {"length": <number>}, "searcherMetric": …}') from error
    check_int(length, "op.length")
    async with changing(db) as change:
        metric = given.get("searcherMetric")
        await trialing.complete_operation(change, trial_id, length, metric, sender=principal.sender)
    return JsonResponse({})


@router.post("/{trial_id}/progress")
async def report_progress(
    request: Request, trial_id: Id, principal: TrialReporter, db: Db
) -> Response:
    """A bare number: length units so far (@22). ``{"progress": p, …}``: a fraction 0..1 (@38)."""
    given = await body(request)
    fraction = isinstance(given, dict)
    if isinstance(given, dict):
        given = given.get("progress")
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise BadRequest(f"progress must be a number, not {show(given)}")
    events: ProgressEvents = request.app.state.progress_events
    async with changing(db) as change:
        await trialing.report_progress(
            change,
            trial_id,
            float(given),
            fraction=fraction,
            tell_search=events.is_due(trial_id),
            sender=principal.sender,
        )
    return JsonResponse({})


@router.post("/{trial_id}/early_exit")
async def report_early_exit(
    request: Request, trial_id: Id, principal: TrialReporter, db: Db
) -> Response:
    """``{"reason": "EXITED_REASON_INVALID_HP"}``; the process is expected to exit soon."""
    given = await object_body(request)
    reason = check_text(given.get("reason", ""), "reason")
    async with changing(db) as change:
        await trialing.report_early_exit(change, trial_id, reason, sender=principal.sender)
    return JsonResponse({})


@router.post("/{trial_id}/runner/metadata")
async def set_runner_metadata(
    request: Request, trial_id: Id, principal: TrialReporter, db: Db
) -> Response:
    """``{"state": "training"}``: the status that the training code shows."""
    given = await object_body(request)
    state = check_text(given.get("state", ""), "state")
    async with changing(db) as change:
        await trialing.set_runner_state(change, trial_id, state, sender=principal.sender)
    return JsonResponse({})


@router.post("/{trial_id}/kill")
async def kill(
    trial_id: Id, user: Annotated[Principal, may(Action.CHANGE, Kind.TRIAL, "kill")], db: Db
) -> Response:
    """Kills the trial; its experiment's search goes on."""
    async with changing(db) as change:
        await trialing.kill(change, trial_id)
    return JsonResponse({})
