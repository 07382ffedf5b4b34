"""Routes of the flow of a pipeline."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from starlette.responses import Response

from determined.common.wire import paths, serving
from determined.common.wire.pipeline import (
    AdvancePipeline,
    PipelineState,
    PipelineStep,
    RunPipelineAgain,
)
from determined.common.wire.serving import Served
from determined_service.access.dependencies import PipelineRunAuth, may_serve
from determined_service.access.targets import Kind
from determined_service.base import topics
from determined_service.base.bounds import Id
from determined_service.base.errors import NotFound
from determined_service.base.json import JsonResponse
from determined_service.internal import begun
from determined_service.pipelines import machine, repeating, rows, steps
from determined_service.state import run_records
from determined_service.state.change import changing, reader
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf, SettingsOf
from determined_service.web.waiting import poll, wait_seconds

router = Router("Pipelines")


@router.post(paths.PIPELINES)
async def begin(
    given: RunPipelineAgain,
    served: Annotated[Served | None, may_serve(Kind.PIPELINE, serving.NEW_PIPELINE)],
    db: Db,
    settings: SettingsOf,
) -> Response:
    """Runs a pipeline again, as a new one whose flow runs already; once for each flow run."""
    begun.require_own(served, given.flow_run_id)
    async with changing(db) as change:
        row = await rows.lock(change.conn, given.again)
        if row.retraining_run_id is not None:
            raise NotFound(f"pipeline {given.again} does not exist")
        pipeline_id = await repeating.again(change, row, given.flow_run_id)
        now = await rows.lock(change.conn, pipeline_id)
    return JsonResponse(begun.state_of(served, now, settings))


@router.post(paths.ADVANCE_PIPELINE)
async def advance(
    request: Request,
    pipeline_id: Id,
    given: AdvancePipeline,
    run: PipelineRunAuth,
    db: Db,
    hub: HubOf,
    settings: SettingsOf,
) -> Response:
    """Takes the steps that can be taken, and answers where the pipeline is; waits until that has changed."""
    async with reader(db).connect() as conn:
        await run_records.seen(conn, run_records.PIPELINE, pipeline_id)
    last = await steps.advance(db, settings, pipeline_id)

    async def changed() -> bool | None:
        nonlocal last
        last = await steps.advance(db, settings, pipeline_id)
        return None if same() else True

    def same() -> bool:
        row = last.pipeline.row
        return row.state == machine.RUNNING and row.changes == given.changes

    if same():
        listened = [topics.pipeline(pipeline_id), *last.topics]
        await poll(request, hub, listened, changed, wait_seconds(given.timeout_s))
    return JsonResponse(_state(last))


def _state(now: steps.Now) -> PipelineState:
    row = now.pipeline.row
    listed = [
        PipelineStep(
            asked.name,
            step.state,
            step.reason,
            [one.experiment_id for one in standing.tries if one.experiment_id is not None],
        )
        for asked, step, standing in zip(
            now.pipeline.plan.steps, now.pipeline.steps, now.pipeline.standings, strict=True
        )
    ]
    return PipelineState(
        row.id, row.state, row.state == machine.RUNNING, row.changes, row.reason, listed
    )
