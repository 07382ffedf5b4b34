"""Routes of the flow that trains a model again."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from starlette.responses import Response

from determined.common.wire import paths, serving
from determined.common.wire.retraining import (
    AdvanceRetraining,
    BeginRetraining,
    RetrainingState,
)
from determined.common.wire.serving import Served
from determined_service.access.dependencies import RetrainingRunAuth, may_serve
from determined_service.access.targets import Kind
from determined_service.base import topics
from determined_service.base.bounds import BigId
from determined_service.base.json import JsonResponse
from determined_service.internal import begun
from determined_service.retraining import runs, steps
from determined_service.state import keeping
from determined_service.state.change import changing, reader
from determined_service.views.models import find_model
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf, SettingsOf
from determined_service.web.waiting import poll, wait_seconds

router = Router("Models")


@router.post(paths.RETRAINING_RUNS)
async def begin(
    given: BeginRetraining,
    served: Annotated[Served | None, may_serve(Kind.RETRAINING, serving.NEW_RETRAINING)],
    db: Db,
    settings: SettingsOf,
) -> Response:
    """Begins a run whose flow runs already, once for each flow run; 409 while another one is open."""
    begun.require_own(served, given.flow_run_id)
    async with changing(db) as change:
        model = await find_model(change.conn, given.model)
        retraining = await runs.find(change.conn, model.id, lock=True)
        run_id = await runs.begin(
            change,
            retraining,
            "a run in Prefect",
            forced=given.force,
            flow_run_id=given.flow_run_id,
        )
        run = await runs.lock_run(change.conn, run_id)
        runs.show(change, run_id)
        runs.name(change, run_id, run.model)
    token = begun.token_for(served, serving.RETRAINING, run_id, settings)
    return JsonResponse(RetrainingState(run_id, run.state, run.state in runs.OPEN, run_token=token))


@router.post(paths.ADVANCE_RETRAINING)
async def advance(
    request: Request,
    run_id: BigId,
    given: AdvanceRetraining,
    run: RetrainingRunAuth,
    db: Db,
    hub: HubOf,
    settings: SettingsOf,
) -> Response:
    """Takes the steps that can be taken, and answers where the run is; waits until that has changed."""
    async with reader(db).connect() as conn:
        await keeping.seen(conn, keeping.RETRAINING, run_id)
    last = await steps.advance(db, settings, run_id)

    async def changed() -> bool | None:
        nonlocal last
        last = await steps.advance(db, settings, run_id)
        return True if not same(last) else None

    def same(now: steps.Standing) -> bool:
        return (now.state, now.experiment_id) == (given.state, given.experiment_id)

    if same(last) and last.experiment_id is not None:
        listened = [topics.experiment(last.experiment_id), topics.RETRAININGS]
        await poll(request, hub, listened, changed, wait_seconds(given.timeout_s))
    found = RetrainingState(
        run_id, last.state, last.state in runs.OPEN, last.reason, last.experiment_id
    )
    return JsonResponse(found)
