"""Routes for the runner of a custom search."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request
from starlette.responses import Response

from determined_service.access.dependencies import ExperimentReader, may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base import topics
from determined_service.base.bounds import Id, Seconds
from determined_service.base.checks import check_int
from determined_service.base.errors import BadRequest
from determined_service.base.json import JsonResponse
from determined_service.search import custom_search
from determined_service.state.change import changing, reader
from determined_service.web.request import json_example, object_body
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf, SettingsOf
from determined_service.web.waiting import MAX_WAIT_S, poll, wait_seconds

router = Router("Experiments", "/api/v1/experiments")


@router.get("/{experiment_id}/searcher_events")
async def read_events(
    request: Request,
    experiment_id: Id,
    user: ExperimentReader,
    db: Db,
    hub: HubOf,
    timeout_s: Seconds | None = None,
) -> Response:
    """All events that wait for an answer; waits for one, and answers none after ``timeout_s``.

    While the experiment is paused, and when it has ended, the answer is one event that says so.
    """

    async def check() -> list[dict[str, Any]] | None:
        async with reader(db).connect() as conn:
            return await custom_search.read_queue(conn, experiment_id) or None

    awaited = [topics.search(experiment_id), topics.experiment(experiment_id)]
    found = await poll(request, hub, awaited, check, wait_seconds(timeout_s, default=MAX_WAIT_S))
    return JsonResponse({"searcherEvents": found or []})


_EXAMPLE = {
    "triggeredByEvent": {"id": 2},
    "searcherOperations": [
        {
            "trialOperation": {
                "validateAfter": {
                    "requestId": "2f9bd9b5-1f5b-4a5c-8a5c-4b1c9b1e3a52",
                    "length": "100",
                }
            }
        }
    ],
}


@router.post("/{experiment_id}/searcher_operations", openapi_extra=json_example(_EXAMPLE))
async def post_operations(
    request: Request,
    experiment_id: Id,
    user: Annotated[Principal, may(Action.CHANGE, Kind.EXPERIMENT, "run the search of")],
    db: Db,
    settings: SettingsOf,
) -> Response:
    """Answers the event ``triggeredByEvent``, and all before it, with operations.

    ``skipped`` lists operations that could not be read; published clients ignore it.
    """
    given = await object_body(request)
    try:
        event_id = int(given["triggeredByEvent"]["id"])
        operations = list(given.get("searcherOperations") or [])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadRequest(
            'send {"triggeredByEvent": {"id": <number>}, "searcherOperations": […]}'
        ) from error
    check_int(event_id, "triggeredByEvent.id", least=-1)
    async with changing(db) as change:
        quotas = settings.cluster.quotas
        skipped = await custom_search.answer(change, experiment_id, event_id, operations, quotas)
    return JsonResponse({"skipped": skipped})
