"""What the runner of a custom search asks and answers, and what its flow follows."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from determined_service.api.state import Db, HubOf
from determined_service.auth import AgentAuth, CurrentUser
from determined_service.control import custom_search
from determined_service.control.change import changing, reader
from determined_service.errors import BadRequest
from determined_service.json import JsonResponse
from determined_service.request import body, json_example
from determined_service.routes.search import poll_as_driver
from determined_service.routes.waiting import MAX_WAIT_S, poll, wait_seconds

router = APIRouter(prefix="/api/v1/experiments", tags=["Experiments"])
internal = APIRouter(prefix="/internal/v1/experiments", tags=["Search"])


@router.get("/{experiment_id}/searcher_events")
async def read_events(
    request: Request,
    experiment_id: int,
    user: CurrentUser,
    db: Db,
    hub: HubOf,
    timeout_s: float | None = None,
) -> Response:
    """All events that wait for an answer, as soon as there is one; none after ``timeout_s``.

    While the experiment is paused, and when it has ended, one event that says so.
    """

    async def check() -> list[dict[str, Any]] | None:
        async with reader(db).connect() as conn:
            return await custom_search.read_queue(conn, experiment_id) or None

    topics = [f"search:{experiment_id}", f"experiment:{experiment_id}"]
    found = await poll(request, hub, topics, check, wait_seconds(timeout_s, default=MAX_WAIT_S))
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
    request: Request, experiment_id: int, user: CurrentUser, db: Db
) -> Response:
    """Answers the event ``triggeredByEvent``, and all before it, with operations.

    ``skipped`` lists operations that could not be read, which published clients do not look at.
    """
    given = await body(request)
    try:
        event_id = int(given["triggeredByEvent"]["id"])
        operations = list(given.get("searcherOperations") or [])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadRequest(
            'send {"triggeredByEvent": {"id": <number>}, "searcherOperations": […]}'
        ) from error
    async with changing(db) as change:
        skipped = await custom_search.answer(change, experiment_id, event_id, operations)
    return JsonResponse({"skipped": skipped})


@internal.get("/{experiment_id}/search/follow")
async def follow(
    request: Request,
    experiment_id: int,
    driver: uuid.UUID,
    agent: AgentAuth,
    db: Db,
    hub: HubOf,
    state: str | None = None,
    timeout_s: float = 0.0,
) -> Response:
    """Trials without a run in Prefect; waits for one, or until the state is not ``state``."""
    last: dict[str, Any] = {}

    async def check() -> dict[str, Any] | None:
        nonlocal last
        async with reader(db).connect() as conn:
            last = await custom_search.follow(conn, experiment_id, driver)
        return last if last["trials"] or last["state"] != state or last["ended"] else None

    found = await poll_as_driver(request, db, hub, experiment_id, driver, check, timeout_s)
    return JsonResponse(found or last)
