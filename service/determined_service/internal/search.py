"""Routes of the flow that drives a search."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Annotated

import sqlalchemy as sa
from fastapi import Request
from starlette.responses import Response

from determined.common.wire import paths, serving
from determined.common.wire.search import (
    Attachment,
    Commit,
    Driven,
    Events,
    SearchFailure,
    TrialRef,
    TrialRun,
)
from determined.common.wire.serving import Served
from determined_registry.database.tables import experiments, searches
from determined_service.access.dependencies import ExperimentRunAuth, may_serve
from determined_service.access.targets import Kind
from determined_service.base.bounds import BigId, Id, Seconds
from determined_service.base.errors import NotFound
from determined_service.base.json import JsonResponse
from determined_service.base.settings import Settings
from determined_service.internal.driver_poll import poll_as_driver
from determined_service.lifecycle import trials as trialing
from determined_service.search import driving as searching
from determined_service.state import run_records
from determined_service.state.change import changing, reader
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf, SettingsOf

router = Router("Search")


@router.post(paths.ATTACH)
async def attach(
    experiment_id: Id, given: Attachment, run: ExperimentRunAuth, db: Db, settings: SettingsOf
) -> Response:
    """Makes the caller the driver of the search; answers all data that it needs to continue."""
    async with changing(db) as change:
        found = await searching.attach(change, experiment_id, given.driver, given.flow_run_id)
    waiting = _signed(found.trials_without_run, settings)
    return JsonResponse(replace(found, trials_without_run=waiting))


def _signed(trials: list[TrialRef], settings: Settings) -> list[TrialRef]:
    """With the tokens of their runs."""
    secret = settings.agent_token.get_secret_value()
    return [
        replace(one, run_token=serving.sign(secret, Served(serving.TRIAL, str(one.trial_id))))
        for one in trials
    ]


@router.get(paths.SEARCH)
async def get_search(experiment_id: Id, run: ExperimentRunAuth, db: Db) -> Response:
    """The driver of the search, and how far the search is."""
    async with reader(db).connect() as conn:
        found = await conn.execute(
            sa.select(
                experiments.c.state,
                experiments.c.reason,
                run_records.r.flow_run_id,
                searches.c.driver,
                run_records.r.seen_at.label("driver_seen_at"),
                searches.c.committed_event_id,
                searches.c.last_event_id,
            )
            .join(searches, searches.c.experiment_id == experiments.c.id)
            .outerjoin(run_records.kept_runs, experiments.c.id == run_records.EXPERIMENT)
            .where(experiments.c.id == experiment_id)
        )
    row = found.first()
    if row is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    return JsonResponse(Driven(**row._mapping))


@router.get(paths.EVENTS)
async def read_events(
    request: Request,
    experiment_id: Id,
    driver: uuid.UUID,
    run: ExperimentRunAuth,
    db: Db,
    hub: HubOf,
    after: BigId = 0,
    state: str | None = None,
    timeout_s: Seconds = 0.0,
) -> Response:
    """Events after the id ``after``; waits for one, or until the state is not ``state``."""
    last: Events | None = None

    async def check() -> Events | None:
        nonlocal last
        async with reader(db).connect() as conn:
            last = await searching.read_events(conn, experiment_id, driver, after)
        # Without `state` the caller learns of changes by the announcement alone.
        changed = state is not None and last.state != state
        return last if last.events or changed or last.ended else None

    found = await poll_as_driver(request, db, hub, experiment_id, driver, check, timeout_s)
    return JsonResponse(found or last)


@router.post(paths.COMMIT)
async def commit(
    experiment_id: Id, given: Commit, run: ExperimentRunAuth, db: Db, settings: SettingsOf
) -> Response:
    """Applies the operations and stores the state of the search, in one transaction, once."""
    if not given.operations:
        async with reader(db).connect() as conn:
            quiet = await searching.commit_quietly(
                conn,
                experiment_id,
                given.driver,
                last_event_id=given.last_event_id,
                snapshot=given.snapshot,
                operations_digest=given.operations_digest,
                progress=given.progress,
            )
        if quiet is not None:
            return JsonResponse(quiet)
    async with changing(db) as change:
        found = await searching.commit(
            change,
            experiment_id,
            given.driver,
            last_event_id=given.last_event_id,
            operations=given.operations,
            snapshot=given.snapshot,
            operations_digest=given.operations_digest,
            progress=given.progress,
        )
    return JsonResponse(replace(found, trials=_signed(found.trials, settings)))


@router.post(paths.FAIL)
async def fail(experiment_id: Id, given: SearchFailure, run: ExperimentRunAuth, db: Db) -> Response:
    """Ends the experiment in error."""
    async with changing(db) as change:
        await searching.fail(change, experiment_id, given.driver, given.error)
    return JsonResponse({})


@router.post(paths.TRIAL_RUN)
async def set_trial_run(
    trial_id: Id,
    given: TrialRun,
    served: Annotated[Served | None, may_serve(Kind.EXPERIMENT, serving.EXPERIMENT)],
    db: Db,
) -> Response:
    """Notes that the run exists, so that the states kept for it are delivered."""
    async with reader(db).connect() as conn:
        await trialing.set_flow_run(
            conn, trial_id, given.flow_run_id, of=None if served is None else int(served.id)
        )
    return JsonResponse({})
