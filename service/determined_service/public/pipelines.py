"""Pipelines of experiments: docs/automate/pipelines.md."""

# Parameters and fields are named as in the API.
# ruff: noqa: N803, N815
from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from determined_service.access.dependencies import PipelineReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.aside import aside
from determined_service.base.bounds import Id, IdempotencyKey, Name
from determined_service.base.errors import NotFound
from determined_service.base.json import JsonResponse
from determined_service.lifecycle.places import Named
from determined_service.pipelines import people, repeating, rows, submitting
from determined_service.public import bodies_with_files
from determined_service.public.bodies_with_files import WithFiles
from determined_service.recurring.schedules import Schedule
from determined_service.state.change import changing, reader
from determined_service.submission import placing
from determined_service.submission.model_definition import content_size
from determined_service.submission.unpacking import pack_several
from determined_service.views.lists import answer_list, each
from determined_service.views.paging import Limit, Offset, OrderBy
from determined_service.views.pipelines import (
    WEIGHT,
    find_pipeline,
    p,
    pipeline_json,
    select_pipelines,
)
from determined_service.views.secrets import Viewer
from determined_service.views.values import moment
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Pipelines", "/api/v1")
PIPELINE = "/pipelines/{pipeline_id}"
Creator = Annotated[Principal, may(Action.CREATE, Kind.PIPELINE)]


class NewPipeline(WithFiles):
    """A pipeline, and the files of its steps."""

    pipeline: dict[str, Any] = Field(
        description="`name` and `steps`, and if it runs again by itself `schedule` and `on`. Each step has "
        "`name` and one of `experiment` (a configuration), `evaluate` (`function`, `checkpoint`, `against`, "
        "`rule`, `like`), `command` (a configuration), `approval` (a question) and `promote` (`model`, "
        "`checkpoint`, `alias`, or `comparison`, `approval`), and may have `needs` and `when`, experiments "
        "also `with`, `for_each`, `max_concurrent`, `cached`; `code` is a name of `modelDefinitions`."
    )
    modelDefinitions: dict[str, list[dict[str, Any]]] = Field(
        default_factory=dict, description="By name, lists of files as in a submission."
    )
    workspaceName: Name = Field(
        default="", description="Its workspace, with projectName; blank: Uncategorized."
    )
    projectName: Name = Field(
        default="",
        description="The project of that workspace into which experiments go whose configurations name none.",
    )
    projectId: Id | None = Field(default=None, description="That project, by its id.")
    idempotencyKey: IdempotencyKey | None = Field(
        default=None,
        description="Made up by the sender: another request of the same user with the same key is answered "
        "with the same pipeline.",
    )
    validateOnly: bool = Field(default=False, description="Only check it, store nothing.")


async def read_pipeline(request: Request, user: Creator) -> AsyncIterator[NewPipeline]:
    """What is in the body, once it is known who asks."""
    async with bodies_with_files.read(request, NewPipeline) as given:
        yield given


@router.post("/pipelines", openapi_extra=bodies_with_files.described(NewPipeline))
async def create_pipeline(
    given: Annotated[NewPipeline, Depends(read_pipeline)],
    user: Creator,
    db: Db,
    settings: SettingsOf,
) -> Response:
    """Checks the whole pipeline, stores it and begins it; answers its id (`pipelineId`) and `remarks`,
    sentences on what of its steps is not heeded where they will run."""
    async with reader(db).connect() as conn:
        known = await submitting.find(conn, user.user_id, given.idempotencyKey)
    if known is not None:
        return JsonResponse({"pipelineId": known})
    definitions = given._several
    if not definitions:
        size = sum(content_size(files) for files in given.modelDefinitions.values())
        definitions = await aside(size, pack_several, given.modelDefinitions)
    named = Named(given.workspaceName, given.projectName, given.projectId or None)
    place = await placing.find(db, user, named, Kind.EXPERIMENT)
    prepared = await submitting.prepare(db, user, given.pipeline, definitions, settings, place)
    async with changing(db) as change:
        remarks = await submitting.check_against(change.conn, prepared, settings, user)
        if given.validateOnly:
            return JsonResponse({"pipelineId": None, "remarks": remarks})
        pipeline_id = await submitting.store(
            change,
            prepared,
            definitions,
            user.user_id,
            user.task,
            given.idempotencyKey,
            settings.cluster.quotas,
        )
    return JsonResponse({"pipelineId": pipeline_id, "remarks": remarks})


@router.get("/pipelines")
async def list_pipelines(
    user: PipelineReader,
    db: Db,
    offset: Offset = 0,
    limit: Limit = 0,
    orderBy: OrderBy = "ORDER_BY_DESC",
) -> Response:
    """Every pipeline, the latest first."""
    order = p.id.asc() if orderBy == "ORDER_BY_ASC" else p.id.desc()
    statement, make = select_pipelines().order_by(order), each(pipeline_json)
    return await answer_list(
        db, "pipelines", statement, p.id, WEIGHT, make, offset=offset, limit=limit
    )


@router.get(PIPELINE)
async def read_pipeline_of(pipeline_id: Id, user: PipelineReader, db: Db) -> Response:
    """One pipeline with its steps, and every try of their experiments."""
    async with db.tx() as conn:
        found = await find_pipeline(conn, pipeline_id, Viewer(user))
    if found is None:
        raise NotFound(f"pipeline {pipeline_id} does not exist")
    return JsonResponse({"pipeline": found})


class StepApproval(BaseModel):
    """``approve`` false: the step is rejected. ``step``: must be given when several wait."""

    approve: bool
    step: Annotated[str | None, Field(max_length=64)] = None


@router.post(f"{PIPELINE}/approve")
async def approve_step(
    pipeline_id: Id,
    given: StepApproval,
    user: Annotated[Principal, may(Action.CHANGE, Kind.PIPELINE, "approve a step of")],
    db: Db,
) -> Response:
    """Approves the step that waits for it, or rejects it, which fails it; answers its name (`step`). 409 when
    none waits."""
    said = people.ApprovalAnswer(user.user_id, user.username, given.approve)
    async with changing(db) as change:
        name = await people.answer(change, pipeline_id, given.step, said)
    return JsonResponse({"step": name})


@router.post(f"{PIPELINE}/cancel")
async def cancel_pipeline(
    pipeline_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.PIPELINE, "cancel")],
    db: Db,
) -> Response:
    """Ends the pipeline and kills its experiments. 409 when it has ended."""
    await people.cancel(db, pipeline_id, f"canceled by {user.username}")
    return JsonResponse({})


@router.post(f"{PIPELINE}/resume")
async def resume_pipeline(
    pipeline_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.PIPELINE, "resume")],
    db: Db,
) -> Response:
    """Tries again what failed, was skipped or was canceled; what has completed stays. 409 while it runs."""
    await people.resume(db, pipeline_id)
    return JsonResponse({})


@router.post(f"{PIPELINE}/again")
async def run_again(
    pipeline_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.PIPELINE, "run again")],
    db: Db,
) -> Response:
    """Runs it again from its beginning, with the same plan and code and in its owner's name; answers the
    new pipeline's id (`pipelineId`)."""
    async with changing(db) as change:
        row = await rows.lock(change.conn, pipeline_id)
        made = await repeating.again(change, row)
    return JsonResponse({"pipelineId": made})


Scheduler = Annotated[Principal, may(Action.CHANGE, Kind.PIPELINE, "schedule")]


@router.put(f"{PIPELINE}/schedule")
async def set_schedule(pipeline_id: Id, given: Schedule, user: Scheduler, db: Db) -> Response:
    """Has it run again whenever the schedule says so; answers when it does next (`nextTime`)."""
    schedule = given.model_dump(exclude_none=True)
    following = await repeating.set_schedule(db, pipeline_id, schedule)
    return JsonResponse({"nextTime": moment(following)})


@router.delete(f"{PIPELINE}/schedule")
async def delete_schedule(pipeline_id: Id, user: Scheduler, db: Db) -> Response:
    """It runs again no more, neither on its schedule nor after events; what runs goes on."""
    await repeating.set_schedule(db, pipeline_id, None)
    return JsonResponse({})


@router.delete(PIPELINE)
async def delete_pipeline(
    pipeline_id: Id,
    user: Annotated[Principal, may(Action.DELETE, Kind.PIPELINE)],
    db: Db,
) -> Response:
    """Forgets the pipeline; its experiments stay. 409 while it runs."""
    await people.delete(db, pipeline_id)
    return JsonResponse({})
