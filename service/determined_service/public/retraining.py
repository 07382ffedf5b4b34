"""Models that are trained again: docs/automate/retraining.md."""

# Parameters and fields are named as in the API.
# ruff: noqa: N803, N815
from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from determined_registry.database.tables import models, retraining_runs, retrainings
from determined_registry.database.tables.people import FIRST
from determined_service.access.dependencies import ModelReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.aside import aside
from determined_service.base.bounds import Id, Name
from determined_service.base.json import JsonResponse
from determined_service.lifecycle.places import Named
from determined_service.pipelines import people as of_pipelines
from determined_service.public import bodies_with_files
from determined_service.public.bodies_with_files import WithFiles
from determined_service.public.models import MODEL
from determined_service.recurring.triggers import MOST_VALUES, Finite
from determined_service.retraining import live, people, runs
from determined_service.retraining.plans import Plan
from determined_service.state.change import changing, reader
from determined_service.submission import placing, submit, user_defaults
from determined_service.views.lists import answer_list, each
from determined_service.views.models import find_model
from determined_service.views.paging import Limit, Offset, OrderBy
from determined_service.views.retraining import (
    LIVE_WEIGHT,
    RUN_WEIGHT,
    WEIGHT,
    live_metric_json,
    retraining_json,
    run_json,
    select_retrainings,
    select_runs,
)
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Models", "/api/v1")
RETRAINING = f"{MODEL}/retraining"
Changer = Annotated[Principal, may(Action.CHANGE, Kind.MODEL, "retrain")]


class NewRetraining(WithFiles):
    """What is trained, and how it is promoted."""

    config: str = Field(description="The experiment configuration, YAML text.")
    modelDefinition: list[dict[str, Any]] = Field(
        default_factory=list, description="Files, as in a submission."
    )
    plan: Plan


async def read_retraining(request: Request, user: Changer) -> AsyncIterator[NewRetraining]:
    """What is in the body, once it is known who asks."""
    async with bodies_with_files.read(request, NewRetraining) as given:
        yield given


@router.get("/retrainings")
async def list_retrainings(
    user: ModelReader, db: Db, offset: Offset = 0, limit: Limit = 0
) -> Response:
    """Every model that is trained again, with its last run."""
    statement, make = select_retrainings().order_by(models.c.name), each(retraining_json)
    return await answer_list(
        db, "retrainings", statement, retrainings.c.id, WEIGHT, make, offset=offset, limit=limit
    )


@router.get(RETRAINING)
async def read_retraining_of(model_name: str, user: ModelReader, db: Db) -> Response:
    """How the model is trained again."""
    async with db.tx() as conn:
        model = await find_model(conn, model_name)
        await runs.find(conn, model.id)
        found = await conn.execute(select_retrainings().where(runs.t.model_id == model.id))
    return JsonResponse({"retraining": retraining_json(found.one())})


@router.put(RETRAINING, openapi_extra=bodies_with_files.described(NewRetraining))
async def put_retraining(
    model_name: str,
    user: Changer,
    given: Annotated[NewRetraining, Depends(read_retraining)],
    db: Db,
    settings: SettingsOf,
) -> Response:
    """Has the model trained again from now on, in the name of who asks; replaces what there was. The
    answer's `remarks` are sentences on what of its configuration is not heeded where it will run."""
    async with reader(db).connect() as conn:
        model = await find_model(conn, model_name)
        layers = await user_defaults.find(conn, user.user_id)
    submission = submit.SubmissionRequest(
        config=given.config,
        model_definition=given.modelDefinition,
        definition=given._packed,
        layers=layers,
    )
    # The workspace of a model that is not in Uncategorized needs a project, by its name.
    within = Named() if model.workspace_id == FIRST else Named(workspace_id=model.workspace_id)
    place = await placing.of_experiment(db, user, given.config, layers, None, otherwise=within)
    prepared = await submit.prepare(submission, settings, place)
    config = await aside(len(given.config), people.as_json, given.config)
    async with changing(db) as change:
        model_id, remarks = await people.put(
            change, settings, model_name, given.plan, submission, prepared, config, user.user_id
        )
        found = await change.conn.execute(select_retrainings().where(runs.t.model_id == model_id))
        shown = retraining_json(found.one())
    return JsonResponse({"retraining": shown, "remarks": remarks})


@router.delete(RETRAINING)
async def delete_retraining(model_name: str, user: Changer, db: Db) -> Response:
    """The model is not trained again any more; the history of its runs goes, versions and aliases stay."""
    async with changing(db) as change:
        model = await find_model(change.conn, model_name)
        await people.delete(change, model.id)
    return JsonResponse({})


class Pause(BaseModel):
    """Whether schedule and events rest."""

    paused: bool


@router.patch(RETRAINING)
async def pause_retraining(model_name: str, given: Pause, user: Changer, db: Db) -> Response:
    """Pauses schedule and events, or lets them go on; what was missed meanwhile is not caught up."""
    async with changing(db) as change:
        model = await find_model(change.conn, model_name)
        await people.pause(change, model.id, given.paused)
    return JsonResponse({})


class Run(BaseModel):
    """``force``: train also when the data has not changed."""

    force: bool = False


@router.post(f"{RETRAINING}/runs")
async def run_now(model_name: str, given: Run, user: Changer, db: Db) -> Response:
    """Begins a run now; answers its id (`runId`). 409 while another one is open."""
    async with changing(db) as change:
        model = await find_model(change.conn, model_name)
        retraining = await runs.find(change.conn, model.id, lock=True)
        run_id = await runs.begin(change, retraining, user.username, forced=given.force)
    return JsonResponse({"runId": run_id})


@router.get(f"{RETRAINING}/runs")
async def list_runs(
    model_name: str,
    user: ModelReader,
    db: Db,
    offset: Offset = 0,
    limit: Limit = 0,
    orderBy: OrderBy = "ORDER_BY_DESC",
) -> Response:
    """Each time that the model was trained again or rolled back, the latest first."""
    column = retraining_runs.c.id
    async with db.tx() as conn:
        model = await find_model(conn, model_name)
        retraining = await runs.find(conn, model.id)
    statement = (
        select_runs()
        .where(runs.r.retraining_id == retraining.id)
        .order_by(column.asc() if orderBy == "ORDER_BY_ASC" else column.desc())
    )
    make = each(run_json)
    return await answer_list(
        db, "runs", statement, column, RUN_WEIGHT, make, offset=offset, limit=limit
    )


@router.post(f"{RETRAINING}/cancel")
async def cancel_run(model_name: str, user: Changer, db: Db) -> Response:
    """Ends the open run and kills its experiment; the champion stays."""
    async with changing(db) as change:
        model = await find_model(change.conn, model_name)
        run_id, pipeline_id = await people.cancel(change, model.id, user.username)
    await of_pipelines.stop(db, pipeline_id)
    return JsonResponse({"runId": run_id})


class RunApproval(BaseModel):
    """``approve`` false: the run that waits is rejected."""

    approve: bool


@router.post(f"{RETRAINING}/approve")
async def approve_run(model_name: str, given: RunApproval, user: Changer, db: Db) -> Response:
    """Approves the run that waits, which moves the alias, or rejects it."""
    async with changing(db) as change:
        model = await find_model(change.conn, model_name)
        said = of_pipelines.ApprovalAnswer(user.user_id, user.username, given.approve)
        run_id = await people.answer(change, model.id, said)
    return JsonResponse({"runId": run_id})


class NewLiveMetric(BaseModel):
    """``values``: the oldest first; ``version``: of the model that is used, None: its champion."""

    metric: Annotated[Name, Field(min_length=1)]
    values: Annotated[list[Finite], Field(min_length=1, max_length=MOST_VALUES)]
    version: Id | None = None


@router.post(f"{RETRAINING}/live-metrics")
async def report_live_metric(
    model_name: str, given: NewLiveMetric, user: Changer, db: Db
) -> Response:
    """How the model does where it is used: what the events `live_metric` of the plan go by."""
    async with changing(db) as change:
        model = await find_model(change.conn, model_name)
        version = await live.report(change, model.id, given.metric, given.values, given.version)
    return JsonResponse({"version": version})


@router.get(f"{RETRAINING}/live-metrics")
async def list_live_metrics(
    model_name: str, user: ModelReader, db: Db, offset: Offset = 0, limit: Limit = 0
) -> Response:
    """What was reported, the newest first; of each metric the newest values are kept."""
    async with db.tx() as conn:
        model = await find_model(conn, model_name)
        retraining = await runs.find(conn, model.id)
    statement, make = live.select(retraining.id), each(live_metric_json)
    return await answer_list(
        db, "liveMetrics", statement, live.c.id, LIVE_WEIGHT, make, offset=offset, limit=limit
    )


class RollBack(BaseModel):
    """``version`` null: what the alias stood for before its last move."""

    version: Id | None = None


@router.post(f"{RETRAINING}/rollback")
async def roll_back(model_name: str, given: RollBack, user: Changer, db: Db) -> Response:
    """The alias stands for an earlier version again; answers `fromVersion` and `toVersion`."""
    async with changing(db) as change:
        model = await find_model(change.conn, model_name)
        before, after = await people.roll_back(
            change, model.id, user.user_id, user.username, given.version
        )
    return JsonResponse({"fromVersion": before, "toVersion": after})
