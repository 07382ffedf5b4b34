"""The route of a flow that somebody began on Prefect's page, to train a model again."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from determined.common.wire import paths, serving
from determined.common.wire.retraining import BeginRetraining
from determined.common.wire.serving import Served
from determined_service.access.dependencies import may_serve
from determined_service.access.targets import Kind
from determined_service.base.json import JsonResponse
from determined_service.internal import begun
from determined_service.pipelines import rows
from determined_service.retraining import runs
from determined_service.state.change import changing
from determined_service.views.models import find_model
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Models")


@router.post(paths.RETRAINING_RUNS)
async def begin(
    given: BeginRetraining,
    served: Annotated[Served | None, may_serve(Kind.PIPELINE, serving.NEW_RETRAINING)],
    db: Db,
    settings: SettingsOf,
) -> Response:
    """Begins a run whose flow runs already, once for each flow run; answers its pipeline. 409 while another
    one is open."""
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
        runs.name(change, run_id, model.name)
        pipeline_id = await runs.pipeline_of(change.conn, run_id)
        row = await rows.find(change.conn, pipeline_id)
    return JsonResponse(begun.state_of(served, row, settings))
