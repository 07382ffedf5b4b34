"""Receives metrics, the hot path. Bodies are read without models; the answer comes after the commit."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from determined_service.access.dependencies import TrialReporter
from determined_service.access.principal import Principal
from determined_service.base.bounds import Id
from determined_service.base.errors import BadRequest, Conflict
from determined_service.base.json import JsonResponse
from determined_service.ingest.reports import ReportBatch, read_batch, read_upstream_report
from determined_service.web.request import json_example, off_loop, raw_body
from determined_service.web.router import Router
from determined_service.web.state import metrics_queue

router = Router("Metrics", "/api/v1/trials/{trial_id}")


async def _hand_in(request: Request, principal: Principal, batch: ReportBatch) -> int:
    sender = principal.allocation
    if sender is not None:
        if batch.run_id != sender.run_id:
            raise Conflict(
                f"allocation {sender.id} may not report for run {batch.run_id} of trial "
                f"{batch.trial_id}, because it runs another one"
            )
        batch.allocation_id = sender.id
    if not batch.lines and batch.position is None:
        return 0
    stored: int = await metrics_queue(request).submit(batch)
    return stored


async def _read(request: Request, trial_id: int) -> ReportBatch:
    given = await raw_body(request, large=True)
    return await off_loop(request, read_batch, trial_id, given)


_BATCH = {
    "stream": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11",
    "seq": 0,
    "run_id": 1,
    "reports": [
        {
            "group": "training",
            "steps_completed": 100,
            "metrics": {"loss": 0.25, "grad_norm": "NaN"},
            "end_time": "2026-11-21T13:00:00.000000Z",
        }
    ],
}
_REPORT = {
    "group": "training",
    "metrics": {
        "trialId": 1,
        "trialRunId": 1,
        "stepsCompleted": 100,
        "metrics": {"avgMetrics": {"loss": 0.25}},
    },
}


@router.post("/metrics/batch", openapi_extra=json_example(_BATCH))
async def report_batch(trial_id: Id, request: Request, principal: TrialReporter) -> Response:
    """Many reports at once.

    Body: `{"stream": uuid, "seq": int, "run_id": int, "reports": [{"group", "steps_completed", "metrics":
    {…}, "batch_metrics": […] (optional), "end_time": ISO 8601}]}`. NaN and infinities are the strings
    `"NaN"`, `"Infinity"`, `"-Infinity"`. A sender chooses its `stream`, sends its batches one after the
    other with growing `seq`, and may repeat the last batch: it is stored once, and the answer to the
    repetition is `{"stored": 0}`.
    """
    batch = await _read(request, trial_id)
    return JsonResponse({"stored": await _hand_in(request, principal, batch)})


@router.post("/metrics", openapi_extra=json_example(_REPORT))
async def report_metrics(trial_id: Id, request: Request, principal: TrialReporter) -> Response:
    """One report of any group, as Determined's harness sends it."""
    given = await raw_body(request, large=True)
    if not isinstance(given, dict):
        raise BadRequest("the body must be an object")
    batch = read_upstream_report(trial_id, given.get("group"), given.get("metrics"))
    await _hand_in(request, principal, batch)
    return JsonResponse({})


async def _of_group(trial_id: int, group: str, request: Request, who: Principal) -> Response:
    given: Any = await raw_body(request, large=True)
    await _hand_in(request, who, read_upstream_report(trial_id, group, given))
    return JsonResponse({})


@router.post("/training_metrics", openapi_extra=json_example(_REPORT["metrics"]))
async def report_training(trial_id: Id, request: Request, principal: TrialReporter) -> Response:
    """One training report, as harnesses before 0.27 send it."""
    return await _of_group(trial_id, "training", request, principal)


@router.post("/validation_metrics", openapi_extra=json_example(_REPORT["metrics"]))
async def report_validation(trial_id: Id, request: Request, principal: TrialReporter) -> Response:
    """One validation report, as harnesses before 0.27 send it."""
    return await _of_group(trial_id, "validation", request, principal)
