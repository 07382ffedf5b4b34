"""Finds and reads trials and their metadata."""

# Parameters are named as in the API.
# ruff: noqa: N803
from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import Query, Request
from starlette.responses import Response

from determined.common.wire import limits
from determined_registry.database.tables import trials
from determined_service.access.dependencies import Admission, TrialReader, TrialReporter, may_named
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id
from determined_service.base.checks import check_int
from determined_service.base.errors import BadRequest
from determined_service.base.json import JsonResponse
from determined_service.ingest.values import replace_nul
from determined_service.lifecycle import trials as trialing
from determined_service.lifecycle.checkpoints import storage_id
from determined_service.state.change import changing
from determined_service.views.experiments import require_experiment
from determined_service.views.lists import answer_list, answer_one
from determined_service.views.paging import Limit, Offset, OrderBy, ordered
from determined_service.views.trials import (
    SHOWN_STATE,
    SORT_KEYS,
    WEIGHT,
    get_trial,
    require_trial,
    select_trials,
    trials_json,
    weight_of,
)
from determined_service.views.values import state_filter
from determined_service.web.request import json_example, object_body
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Trials", "/api/v1")

t = trials.c


@router.get("/experiments/{experiment_id}/trials")
async def list_trials(
    experiment_id: Id,
    user: TrialReader,
    db: Db,
    states: Annotated[list[str], Query(default_factory=list)],
    offset: Offset = 0,
    limit: Limit = 0,
    sortBy: str = "SORT_BY_UNSPECIFIED",
    orderBy: OrderBy = "ORDER_BY_ASC",
) -> Response:
    """An experiment's trials."""
    mine, order = t.experiment_id == experiment_id, ordered(SORT_KEYS, sortBy, orderBy, t.id)
    wanted = [mine, state_filter(t.state, SHOWN_STATE, states)] if states else [mine]
    statement = select_trials().where(*wanted).order_by(*order)
    keys = None
    if SORT_KEYS[sortBy.removeprefix("SORT_BY_")] is t.id:
        keys = sa.select(t.id).where(*wanted).order_by(*order)
    async with db.tx() as conn:
        await require_experiment(conn, experiment_id)
    return await answer_list(
        db, "trials", statement, t.id, WEIGHT, trials_json, offset=offset, limit=limit, keys=keys
    )


@router.get("/trials/{trial_id}")
async def read_trial(trial_id: Id, user: TrialReader, db: Db) -> Response:
    """One trial, its legs included."""
    async with db.tx() as conn:
        size = await weight_of(conn, trial_id)
    return await answer_one(db, "trial", size, lambda conn: get_trial(conn, trial_id))


@router.post("/runs/start", openapi_extra=json_example({"runId": 1}))
async def start_run(
    request: Request,
    admission: Annotated[Admission, may_named(Action.REPORT, Kind.TRIAL, "report for")],
    db: Db,
) -> Response:
    """The harness of Determined requests this before its first report. `storageId`: the number of the storage
    that the experiment's configuration names, as its checkpoints have it; null without one.
    """
    given = await object_body(request)
    trial_id = check_int(given.get("runId"), "runId", most=limits.INT32)
    await admission.admit(trial_id)
    async with changing(db) as change:
        await require_trial(change.conn, trial_id)
        found = await change.conn.execute(sa.select(t.experiment_id).where(t.id == trial_id))
        number = await storage_id(change.conn, None, found.scalar_one())
    return JsonResponse({"storageId": number})


@router.get("/runs/{trial_id}/metadata", tags=["Trials"])
async def read_metadata(trial_id: Id, user: TrialReader, db: Db) -> Response:
    """The metadata that the training code (or a user) has stored for the trial."""
    async with db.tx() as conn:
        await require_trial(conn, trial_id)
        found = await conn.execute(sa.select(t.run_metadata).where(t.id == trial_id))
        return JsonResponse({"metadata": found.scalar_one()})


@router.post("/runs/{trial_id}/metadata", tags=["Trials"])
async def replace_metadata(
    trial_id: Id, request: Request, principal: TrialReporter, db: Db
) -> Response:
    """``{"metadata": {…}}`` replaces the trial's metadata."""
    given = (await object_body(request, nul=True)).get("metadata")
    if not isinstance(given, dict):
        raise BadRequest("metadata must be an object")
    given = replace_nul(given)
    async with changing(db) as change:
        await trialing.replace_metadata(change, trial_id, given)
    return JsonResponse({"metadata": given})
