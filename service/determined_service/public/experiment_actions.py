"""Submits experiments, and pauses, activates, ends, archives or continues them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic.alias_generators import to_camel
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined.common.wire import serving
from determined.common.wire.serving import Served
from determined.expconf import load_yaml, merge
from determined_service.access.dependencies import Admission, may, may_named
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.aside import aside
from determined_service.base.bodies import UpstreamBody
from determined_service.base.bounds import Id, IdempotencyKey, Name
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest, Conflict, Forbidden
from determined_service.base.json import JsonResponse
from determined_service.base.settings import Settings
from determined_service.lifecycle import experiments as experimenting
from determined_service.lifecycle import surroundings, unmanaged
from determined_service.lifecycle.places import workspace_of
from determined_service.lifecycle.pools import require_pool
from determined_service.plots import links
from determined_service.public import bodies_with_files
from determined_service.public.bodies_with_files import WithFiles
from determined_service.scheduling.capacity import no_agent
from determined_service.state.change import Change, changing, reader
from determined_service.submission import (
    cached,
    continuation,
    layers,
    placing,
    submit,
    user_defaults,
)
from determined_service.submission.templates import Layers
from determined_service.views.experiments import get_experiment, planned_experiment
from determined_service.views.secrets import Viewer
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf, ViewerOf

router = Router("Experiments", "/api/v1/experiments")


Submitter = Annotated[Principal, may(Action.SUBMIT, Kind.EXPERIMENT)]


class NewExperiment(WithFiles, UpstreamBody):
    """``CreateExperimentRequest``; ours: ``flowRunId``, ``idempotencyKey``, ``cached``."""

    config: str = Field(description="The experiment configuration, YAML text.")
    model_definition: list[dict[str, Any]] = Field(
        default_factory=list,
        description="Files: `path`, `type` (48 file, 53 directory), `content` (base64), `mode`.",
    )
    activate: bool = Field(default=True, description="False: the experiment is created paused.")
    validate_only: bool = Field(
        default=False, description="Only check the submission, store nothing."
    )
    explain: bool = Field(
        default=False,
        description="Ours, with `validateOnly`: the answer has `sources`, where each value comes from.",
    )
    parent_id: Id | None = None
    project_id: Id | None = None
    template: Name | None = None
    unmanaged: bool = Field(
        default=False,
        description="The experiment's processes run outside of the cluster and report by themselves.",
    )
    flow_run_id: uuid.UUID | None = Field(
        default=None,
        description="The Prefect run that submits the experiment and will drive its search.",
    )
    idempotency_key: IdempotencyKey | None = Field(
        default=None,
        description="Made up by the sender: another request of the same user with the same key is answered "
        "with the same experiment, even if its other fields differ.",
    )
    cached: bool = Field(
        default=False,
        description="Answered with the user's experiment of the same configuration and model definition, if "
        "it was submitted with `cached`, too (or by such a step of a pipeline), and runs or has completed.",
    )

    @model_validator(mode="after")
    def _finds_one_way(self) -> NewExperiment:
        if self.cached and (
            self.unmanaged or self.idempotency_key is not None or self.flow_run_id is not None
        ):
            raise ValueError(
                "cached does not go with unmanaged, idempotencyKey or flowRunId: leave it out, or them"
            )
        return self

    def submission(self, layers: Layers) -> submit.SubmissionRequest:
        return submit.SubmissionRequest(
            config=self.config,
            model_definition=self.model_definition,
            definition=self._packed,
            activate=self.activate,
            parent_id=self.parent_id,
            project_id=self.project_id,
            layers=layers,
            flow_run_id=self.flow_run_id,
            idempotency_key=self.idempotency_key,
        )


async def read_submission(request: Request, user: Submitter) -> AsyncIterator[NewExperiment]:
    """The submission in the body, once it is known who asks."""
    async with bodies_with_files.read(request, NewExperiment) as given:
        served = user.serves
        if served is not None and (given.unmanaged or str(given.flow_run_id) != served.id):
            raise Forbidden(
                f"this token is good for {served} alone: send that run's id as flowRunId"
            )
        yield given


Submitted = Annotated[NewExperiment, Depends(read_submission)]


@router.post("", openapi_extra=bodies_with_files.described(NewExperiment))
async def create_experiment(
    given: Submitted,
    user: Submitter,
    db: Db,
    settings: SettingsOf,
    viewer_of: ViewerOf,
) -> Response:
    """Checks the whole submission, stores it and starts its search.

    A run in Prefect that submits its own experiment finds `runToken` in the answer: its token from then on.
    """
    if given.unmanaged:
        return await create_unmanaged(given, None, user, db, settings)
    viewer = viewer_of(user)
    beneath = await _layers(db, given, user)
    submission = given.submission(beneath)
    known = await _submitted(db, submission, user.user_id)
    if known is not None:
        return await _answer(db, known, viewer, (), run_token=_run_token(user, known, settings))
    place = await placing.of_experiment(db, user, given.config, beneath, given.project_id)
    prepared = await submit.prepare(submission, settings, place)
    if given.validate_only:
        async with reader(db).connect() as conn:
            plan = await submit.plan(conn, submission, prepared, settings, user.user_id)
            remarks = await _remarks(conn, plan)
        planned = planned_experiment(
            plan.config, given.config, user.username, user.user_id, place.project_id
        )
        answer: dict[str, Any] = {
            "experiment": planned,
            "config": plan.config,
            "warnings": list(plan.warnings),
            "remarks": remarks,
        }
        if given.explain:
            text = given.config
            answer["sources"] = await aside(
                len(text), layers.explained, plan.config, text, settings, beneath, place
            )
        return JsonResponse(answer)
    asked = None
    if given.cached:
        asked = (await aside(len(given.config), load_yaml, given.config)).data
        if given.template:
            asked = merge(asked, beneath[0].of_experiments.data, None)
    try:
        async with changing(db) as change:
            plan = await submit.plan(change.conn, submission, prepared, settings, user.user_id)
            if asked is not None:
                content = cached.content_of(asked, plan.model_def_hash)
                known, key = await cached.find(change.conn, user.user_id, content)
                submission = replace(submission, idempotency_key=key)
            if known is None:
                experiment_id = await submit.store(
                    change, plan, submission, user.user_id, user.task
                )
                found = await get_experiment(change.conn, experiment_id, viewer)
                remarks = await _remarks(change.conn, plan)
    except Conflict:
        known = await _submitted(db, submission, user.user_id)
        if known is None:
            raise
        return await _answer(db, known, viewer, (), run_token=_run_token(user, known, settings))
    if known is not None:
        return await _answer(db, known, viewer, ())
    token = _run_token(user, experiment_id, settings)
    return _created(found, plan.warnings, remarks, token)


def _run_token(user: Principal, experiment_id: int, settings: Settings) -> str:
    """The token for the experiment, if a run in Prefect has submitted it; else empty."""
    if user.serves is None:
        return ""
    served = Served(serving.EXPERIMENT, str(experiment_id))
    return serving.sign(settings.agent_token.get_secret_value(), served)


@router.put(
    "/by-external-id/{external_id:path}", openapi_extra=bodies_with_files.described(NewExperiment)
)
async def put_experiment(
    external_id: Name, given: Submitted, user: Submitter, db: Db, settings: SettingsOf
) -> Response:
    """The unmanaged experiment of this name; a new one when there is none yet."""
    if not given.unmanaged:
        raise BadRequest(
            "only unmanaged experiments have external ids: set unmanaged, or create it without one"
        )
    return await create_unmanaged(given, external_id, user, db, settings)


async def create_unmanaged(
    given: NewExperiment, external_id: str | None, user: Principal, db: Database, settings: Settings
) -> Response:
    """Stores an unmanaged experiment, unless there is one of that external id. The answer has `plotUrl`, a
    page that opens without a login.
    """
    beneath = await _layers(db, given, user)
    place = await placing.of_experiment(db, user, given.config, beneath, given.project_id)
    config = await submit.completed(given.config, settings, beneath, unmanaged=True, place=place)
    async with changing(db) as change:
        experiment_id = await unmanaged.put_experiment(
            change,
            config,
            given.config,
            user.user_id,
            external_id,
            settings.cluster.quotas,
            place,
            user.task,
        )
    viewer = Viewer.of(user, settings)
    plot = links.link(settings, experiment_id)
    return await _answer(db, experiment_id, viewer, (), managed=False, plotUrl=plot)


class Continuation(BaseModel):
    """``ContinueExperimentRequest``."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    id: Id
    override_config: str | None = Field(
        default=None,
        description="YAML text that overrides fields of the configuration; for single trials only.",
    )


@router.post("/continue")
async def continue_experiment(
    given: Continuation,
    admission: Annotated[Admission, may_named(Action.CHANGE, Kind.EXPERIMENT, "continue")],
    db: Db,
    settings: SettingsOf,
    viewer_of: ViewerOf,
) -> Response:
    """Continues an experiment that has ended, in place: its canceled and failed trials run again."""
    user = await admission.admit(given.id)
    changes = await continuation.read_changes(given.override_config or "")
    warnings: tuple[str, ...] = ()
    remarks: list[str] = []
    begun = None
    async with changing(db) as change:
        found = await continuation.require_continuable(change, given.id, changes is not None)
        if changes is not None:
            begun, warnings, remarks = await continuation.reconfigure(
                change, given.id, changes, settings
            )
        else:
            where = f"experiment {given.id} cannot be continued in its resource pool"
            within = workspace_of(given.id)
            await require_pool(change.conn, found.resource_pool, where, within)
        await continuation.begin_again(change, found, settings.cluster.quotas, begun)
    return await _answer(db, given.id, viewer_of(user), warnings, also=remarks)


async def _layers(db: Database, given: NewExperiment, user: Principal) -> Layers:
    async with reader(db).connect() as conn:
        return await user_defaults.layers(conn, given.template, user.user_id)


async def _submitted(
    db: Database, submission: submit.SubmissionRequest, owner_id: int
) -> int | None:
    if submission.flow_run_id is None and submission.idempotency_key is None:
        return None
    async with reader(db).connect() as conn:
        return await submit.find_submitted(conn, submission, owner_id)


async def _remarks(conn: AsyncConnection, plan: submit.SubmissionPlan) -> list[str]:
    text, pool = plan.original_config, plan.resource_pool
    found = await _remarks_on(conn, plan.config, text, pool, waits=bool(plan.warnings))
    return [*found, *plan.remarks]


async def _remarks_on(
    conn: AsyncConnection, config: dict[str, Any], text: str, pool: str, *, waits: bool
) -> list[str]:
    """``waits``: until there is an agent on which its trials could run."""
    found = await surroundings.remarks(conn, config, pool, original=text)
    if waits:
        found.append(no_agent(pool, "a trial of this experiment"))
    return found


async def _answer(
    db: Database,
    experiment_id: Id,
    viewer: Viewer,
    warnings: tuple[str, ...],
    *,
    managed: bool = True,
    run_token: str = "",
    also: Sequence[str] = (),
    **more: str,
) -> Response:
    """``also``: further remarks."""
    async with reader(db).connect() as conn:
        found = await get_experiment(conn, experiment_id, viewer)
        config, text, pool = found["config"], found["originalConfig"], found["resourcePool"]
        if managed:
            remarks = await _remarks_on(conn, config, text, pool, waits=bool(warnings))
        else:
            remarks = surroundings.remarks_outside(config, text)
    return _created(found, warnings, [*remarks, *also], run_token, **more)


def _created(
    found: dict[str, Any],
    warnings: tuple[str, ...],
    remarks: list[str],
    run_token: str = "",
    **more: str,
) -> Response:
    if run_token:
        more["runToken"] = run_token
    return JsonResponse(
        {
            "experiment": found,
            "config": found["config"],
            "warnings": list(warnings),
            # Beside the warnings, which Determined's clients read as an enumeration.
            "remarks": remarks,
            **more,
        }
    )


async def _do(db: Database, act: Callable[[Change], Awaitable[None]]) -> Response:
    async with changing(db) as change:
        await act(change)
    return JsonResponse({})


@router.post("/{experiment_id}/activate")
async def activate(
    experiment_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.EXPERIMENT, "activate")],
    db: Db,
) -> Response:
    """Activates a paused experiment, which then goes on."""
    return await _do(db, lambda change: experimenting.activate(change, experiment_id))


@router.post("/{experiment_id}/pause")
async def pause(
    experiment_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.EXPERIMENT, "pause")],
    db: Db,
) -> Response:
    """Pauses an experiment: every trial saves a checkpoint and gives its slots back."""
    by = user.username
    return await _do(db, lambda change: experimenting.pause(change, experiment_id, by))


@router.post("/{experiment_id}/cancel")
async def cancel(
    experiment_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.EXPERIMENT, "cancel")],
    db: Db,
) -> Response:
    """Cancels an experiment: every trial saves a checkpoint and exits for good."""
    return await _do(db, lambda change: experimenting.cancel(change, experiment_id))


@router.post("/{experiment_id}/kill")
async def kill(
    experiment_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.EXPERIMENT, "kill")],
    db: Db,
) -> Response:
    """Kills every process of the experiment now."""
    return await _do(db, lambda change: experimenting.kill(change, experiment_id))


@router.post("/{experiment_id}/archive")
async def archive(
    experiment_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.EXPERIMENT, "archive")],
    db: Db,
) -> Response:
    """Hides an experiment that has ended from lists."""
    return await _do(db, lambda change: experimenting.archive(change, experiment_id, True))


@router.post("/{experiment_id}/unarchive")
async def unarchive(
    experiment_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.EXPERIMENT, "unarchive")],
    db: Db,
) -> Response:
    """Shows an archived experiment in lists again."""
    return await _do(db, lambda change: experimenting.archive(change, experiment_id, False))
