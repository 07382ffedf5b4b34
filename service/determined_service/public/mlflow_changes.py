"""Changes by MLflow's clients: their experiments and runs, tags, parameters, metrics.

MLflow's server asks these routes in its user's name; scripts that log metrics reach the last ones directly,
by MLflow's own addresses, because those are the hot path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any

import orjson
from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_service.access.dependencies import Admission, may, may_named
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, Name, Text
from determined_service.base.db import Database
from determined_service.base.errors import ApiError, BadRequest, Conflict, Forbidden
from determined_service.base.ids import parse_uuid
from determined_service.base.json import JsonResponse
from determined_service.ingest.mlflow_batches import MlflowBatch, run_of
from determined_service.lifecycle import experiments as experimenting
from determined_service.lifecycle import logged_models, mlflow_runs, unmanaged
from determined_service.state import states
from determined_service.state.change import changing, reader
from determined_service.submission import placing, submit
from determined_service.web.request import parsed
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf, metrics_queue

router = Router("MLflow")
api = "/api/v1/mlflow"

_STATES = {
    "STATE_RUNNING": states.ACTIVE,
    "STATE_COMPLETED": states.COMPLETED,
    "STATE_ERROR": states.ERROR,
    "STATE_CANCELED": states.CANCELED,
}
Tags = Annotated[dict[Name, str | None], Field(max_length=1000)]
Reporter = Annotated[Principal, may(Action.REPORT, Kind.TRIAL, "log to")]
Changer = Annotated[Principal, may(Action.CHANGE, Kind.EXPERIMENT)]


class NewMlflowExperiment(BaseModel):
    """``name``: by which MLflow's clients find it again."""

    name: Name
    tags: dict[Name, Text] = Field(default_factory=dict, max_length=1000)


class MlflowExperimentChange(BaseModel):
    """Fields that are null stay as they are; a tag that is null is removed. ``archived``: hidden."""

    name: Name | None = None
    tags: Tags | None = None
    archived: bool | None = None


class NewRun(BaseModel):
    """A run that begins now."""

    name: Name
    tags: dict[Name, Text] = Field(default_factory=dict, max_length=1000)


class RunPatch(BaseModel):
    """Fields that are null stay as they are; a tag or an artifact that is null is removed. ``artifacts``:
    path and bytes."""

    name: Name | None = None
    tags: Tags | None = None
    inputs: Annotated[list[dict[str, Any]], Field(max_length=1000)] | None = None
    artifacts: (
        Annotated[
            dict[str, Annotated[int, Field(ge=0, le=limits.INT64)] | None], Field(max_length=10_000)
        ]
        | None
    ) = None
    deleted: bool | None = None


class NewRunState(BaseModel):
    """One of STATE_RUNNING, STATE_COMPLETED, STATE_ERROR, STATE_CANCELED."""

    state: Name


@router.post(f"{api}/experiments")
async def create_experiment(
    given: NewMlflowExperiment,
    user: Annotated[Principal, may(Action.CREATE, Kind.EXPERIMENT)],
    db: Db,
    settings: SettingsOf,
) -> Response:
    """An unmanaged experiment of an MLflow client's; 409 when there is one of this name, unless it is
    empty of everything but the name and the same user asks again."""
    text = json.dumps(
        {
            "name": given.name,
            "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": 1}},
        }
    )
    place = await placing.of_experiment(db, user, "", (), None)
    config = await submit.completed(text, settings, unmanaged=True, place=place)
    async with changing(db) as change:
        known = await mlflow_runs.find_native(change.conn, given.name)
        if known is not None:
            raise Conflict(f"an experiment {given.name!r} already exists")
        made = await unmanaged.put_experiment(
            change,
            config,
            text,
            user.user_id,
            None,
            settings.cluster.quotas,
            place,
            user.task,
        )
        await mlflow_runs.name_experiment(change, made, given.name, given.tags)
    return JsonResponse({"experimentId": made})


@router.patch(f"{api}/experiments/{{experiment_id}}")
async def change_experiment(
    experiment_id: Id, given: MlflowExperimentChange, user: Changer, db: Db
) -> Response:
    """Names, tags, hides or shows an experiment."""
    async with changing(db) as change:
        if given.archived is not None:
            # What an MLflow client has made ends with its last run, and has none at first.
            native = await mlflow_runs.is_native(change.conn, experiment_id)
            await experimenting.archive(change, experiment_id, given.archived, unended=native)
            await mlflow_runs.note_update(change, experiment_id)
        if given.name is not None or given.tags is not None:
            await mlflow_runs.change_experiment(
                change, experiment_id, name=given.name, tags=given.tags
            )
    return JsonResponse({})


@router.post(f"{api}/experiments/{{experiment_id}}/runs")
async def start_run(
    experiment_id: Id,
    given: NewRun,
    user: Annotated[Principal, may(Action.CHANGE, Kind.EXPERIMENT, "create runs in")],
    db: Db,
    settings: SettingsOf,
) -> Response:
    """Starts a run in an unmanaged experiment: a trial whose process is outside of the cluster."""
    async with changing(db) as change:
        quotas = settings.cluster.quotas
        made = await mlflow_runs.start_run(change, experiment_id, given.name, given.tags, quotas)
    return JsonResponse({"trialId": made})


@router.patch(f"{api}/runs/{{trial_id}}")
async def change_run(trial_id: Id, given: RunPatch, user: Reporter, db: Db) -> Response:
    """Changes what MLflow's clients say of a run. An empty change asks whether the user might."""
    if given.deleted is not None and user.allocation is not None:
        raise Forbidden(
            f"this is the token of allocation {user.allocation.id}, which reports for trial {trial_id} and "
            "may neither hide nor restore it: only its owner, logged in, or an administrator may"
        )
    values = given.model_dump(exclude_none=True)
    if given.tags is not None:
        values["tags"] = given.tags
    if given.artifacts is not None:
        values["artifacts"] = given.artifacts
    async with changing(db) as change:
        await mlflow_runs.change_run(change, trial_id, mlflow_runs.RunChange(**values))
    return JsonResponse({})


@router.patch(f"{api}/runs/{{trial_id}}/state")
async def set_state(
    trial_id: Id, given: NewRunState, user: Reporter, db: Db, settings: SettingsOf
) -> Response:
    """The state that the script of a run reports."""
    if given.state not in _STATES:
        raise BadRequest(f"state: expected one of {', '.join(_STATES)}, found {given.state[:80]!r}")
    async with changing(db) as change:
        state, quotas = _STATES[given.state], settings.cluster.quotas
        await mlflow_runs.set_state(change, trial_id, state, quotas)
    return JsonResponse({})


class LoggedModelChange(BaseModel):
    """Fields that are null stay as they are; a tag or a parameter that is null is removed. ``step``: at which
    the run has logged it. ``deleted``: hidden."""

    tags: Tags | None = None
    params: Tags | None = None
    step: Annotated[int, Field(ge=-limits.INT64, le=limits.INT64)] | None = None
    deleted: bool | None = None


@router.patch(f"{api}/models/{{uuid}}")
async def change_model(
    uuid: str,
    given: LoggedModelChange,
    user: Annotated[Principal, may(Action.CHANGE, Kind.CHECKPOINT, "change the metadata of")],
    db: Db,
) -> Response:
    """Changes what MLflow's clients say of a logged model: the checkpoint of that uuid."""
    async with changing(db) as change:
        await logged_models.change_model(
            change,
            parse_uuid(uuid, "checkpoint"),
            logged_models.ModelChange(given.tags, given.params, given.step, given.deleted),
        )
    return JsonResponse({})


@router.post(f"{api}/runs/{{trial_id}}/batch")
async def log_batch(trial_id: Id, request: Request, user: Reporter, db: Db) -> Response:
    """Metrics, parameters and tags of a run at once, in MLflow's JSON. The same request again changes
    nothing."""
    raw = await request.body()
    given = await parsed(raw)
    if not isinstance(given, dict):
        raise BadRequest("the body must be an object")
    await _store(request, db, user, trial_id, MlflowBatch(given), raw)
    return JsonResponse({})


async def _store(
    request: Request, db: Database, user: Principal, trial_id: int, given: MlflowBatch, raw: bytes
) -> None:
    async with reader(db).connect() as conn:
        facts = await mlflow_runs.facts(conn, trial_id)
        metrics = given.metrics
        if given.of_models:
            # `log_model` sends points of the run once more, with the name of the model.
            metrics = await mlflow_runs.without_known(conn, trial_id, facts, metrics)
    batch = mlflow_runs.batch(trial_id, facts, metrics, raw)
    if given.of_models:
        async with changing(db) as change:
            await logged_models.log_metrics(change, trial_id, given.of_models)
    if user.allocation is not None:
        batch.run_id = user.allocation.run_id
        batch.allocation_id = user.allocation.id
    if given.params or given.tags:
        change_to = mlflow_runs.RunChange(
            name=given.tags.get("mlflow.runName"), params=given.params, tags=given.tags
        )
        async with changing(db) as change:
            await mlflow_runs.change_run(change, trial_id, change_to)
    if batch.lines:
        await metrics_queue(request).submit(batch)


ToTrial = Annotated[Admission, may_named(Action.REPORT, Kind.TRIAL, "log to")]


@router.post("/mlflow/api/2.0/mlflow/runs/log-batch")
async def mlflow_log_batch(request: Request, admission: ToTrial, db: Db) -> Response:
    """``log_batch`` of MLflow's clients."""
    raw = await request.body()
    return await _answered(request, admission, db, raw, MlflowBatch)


@router.post("/mlflow/api/2.0/mlflow/runs/log-metric")
async def mlflow_log_metric(request: Request, admission: ToTrial, db: Db) -> Response:
    """``log_metric`` of MLflow's clients."""
    raw = await request.body()
    return await _answered(request, admission, db, raw, MlflowBatch.of_metric)


async def _answered(
    request: Request,
    admission: Admission,
    db: Database,
    raw: bytes,
    read: Callable[[dict[str, Any]], MlflowBatch],
) -> Response:
    """In the words that MLflow's clients read; their refusals too."""
    try:
        given = await parsed(raw)
        run_id = run_of(given)
        if not re.fullmatch(r"\d{1,9}", run_id, re.ASCII):
            return mlflow_error(
                404, f"Run with id={show(run_id)} not found: it does not exist or takes no metrics"
            )
        user = await admission.admit(int(run_id))
        await _store(request, db, user, int(run_id), read(given), raw)
    except ApiError as refusal:
        return mlflow_error(refusal.status, refusal.message)
    return JsonResponse({})


_CODES = {
    400: "INVALID_PARAMETER_VALUE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "RESOURCE_DOES_NOT_EXIST",
    409: "INVALID_PARAMETER_VALUE",
    413: "INVALID_PARAMETER_VALUE",
    429: "REQUEST_LIMIT_EXCEEDED",
    503: "TEMPORARILY_UNAVAILABLE",
}


def mlflow_error(status: int, message: str) -> Response:
    """A refusal as MLflow's clients read it."""
    code = _CODES.get(status, "INTERNAL_ERROR")
    body = orjson.dumps({"error_code": code, "message": message, "error": {"error": message}})
    # A 409 is for MLflow's clients a request to repeat; this one would be refused for ever.
    shown = 400 if status in (409, 413) else status
    return Response(body, shown, media_type="application/json")
