"""Routes for the scripts of unmanaged experiments: creating and starting trials, signs of life."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from starlette.responses import Response

from determined.common.wire.paths import RUN_COOKIE
from determined_service.access.dependencies import Admission, may, may_named
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base.bounds import Id, Name
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest
from determined_service.base.json import JsonResponse
from determined_service.base.settings import Settings
from determined_service.lifecycle import unmanaged
from determined_service.state import states
from determined_service.state.change import changing
from determined_service.views.lists import answer_one
from determined_service.views.trials import get_trial, weight_of
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Trials", "/api/v1/trials")

# What a script may say of itself, in the words of Determined's API.
_STATES = {
    "ACTIVE": states.ACTIVE,
    "RUNNING": states.ACTIVE,
    "COMPLETED": states.COMPLETED,
    "CANCELED": states.CANCELED,
    "ERROR": states.ERROR,
}


class _Body(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class NewTrial(_Body):
    """``v1CreateTrialRequest``."""

    experiment_id: Id
    hparams: dict[str, Any] | None = None
    unmanaged: bool = False


class NamedTrial(_Body):
    """``v1PutTrialRequest``."""

    create_trial_request: NewTrial
    external_trial_id: Name


class TrialStart(_Body):
    """``v1StartTrialRequest``. ``resume``: go on from the latest checkpoint."""

    resume: bool = False


class TrialPatch(_Body):
    """``v1PatchTrialRequest``. Without ``state`` the request is a sign of life."""

    state: str | None = None


ToExperiment = Annotated[Admission, may_named(Action.CHANGE, Kind.EXPERIMENT, "create trials in")]
Script = Annotated[Principal, may(Action.CHANGE, Kind.TRIAL, "set the state of")]


@router.post("")
async def create_trial(
    given: NewTrial, admission: ToExperiment, db: Db, settings: SettingsOf
) -> Response:
    """A new trial of an unmanaged experiment."""
    return await _put(db, admission, given, None, settings)


@router.put("")
async def put_trial(
    given: NamedTrial, admission: ToExperiment, db: Db, settings: SettingsOf
) -> Response:
    """The trial of that external id in an unmanaged experiment; a new one when there is none yet."""
    asked, name = given.create_trial_request, given.external_trial_id
    return await _put(db, admission, asked, name, settings)


async def _put(
    db: Database, admission: Admission, given: NewTrial, external_id: str | None, settings: Settings
) -> Response:
    await admission.admit(given.experiment_id)
    if not given.unmanaged:
        raise BadRequest("trials can be created only in unmanaged experiments")
    async with changing(db) as change:
        hparams = given.hparams or {}
        trial_id = await unmanaged.put_trial(
            change, given.experiment_id, hparams, external_id, settings.cluster.quotas
        )
    return await _trial(db, trial_id)


@router.post("/{trial_id}/start")
async def start_trial(
    trial_id: Id, given: TrialStart, user: Script, db: Db, settings: SettingsOf
) -> Response:
    """Starts a run of an unmanaged trial's script; answers the run's number and the checkpoint to go on
    from.
    """
    async with changing(db) as change:
        quotas = settings.cluster.quotas
        return JsonResponse(await unmanaged.start(change, trial_id, given.resume, quotas))


@router.patch("/{trial_id}")
async def patch_trial(trial_id: Id, given: TrialPatch, user: Script, db: Db) -> Response:
    """A sign of life of an unmanaged trial's script, or a report of how it has ended.

    Determined's own client begins with the state RUNNING, and keeps cookies: the answer's cookie names the
    run of the trial, and the client sends it with all other requests.
    """
    state = None
    if given.state is not None:
        name = given.state.removeprefix("STATE_")
        if name not in _STATES:
            raise BadRequest(
                f"state {given.state!r} cannot be set by a script; it may set {', '.join(_STATES)}"
            )
        state = _STATES[name]
    async with changing(db) as change:
        run = await unmanaged.heard_of(change, trial_id, state, user.run_of(trial_id))
    answer = await _trial(db, trial_id)
    if state == states.ACTIVE and user.run is None:
        answer.set_cookie(RUN_COOKIE, str(run), httponly=True, samesite="strict")
    return answer


async def _trial(db: Database, trial_id: int) -> Response:
    async with db.tx() as conn:
        size = await weight_of(conn, trial_id)
    return await answer_one(db, "trial", size, lambda conn: get_trial(conn, trial_id))
