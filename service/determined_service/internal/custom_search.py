"""The route that the flow of a custom search polls."""

from __future__ import annotations

import uuid

from fastapi import Request
from starlette.responses import Response

from determined.common.wire import paths
from determined.common.wire.search import Followed
from determined_service.access.dependencies import ExperimentRunAuth
from determined_service.base.bounds import Id, Seconds
from determined_service.base.json import JsonResponse
from determined_service.internal.driver_poll import poll_as_driver
from determined_service.search import custom_search
from determined_service.state.change import reader
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf

router = Router("Search")


@router.get(paths.FOLLOW)
async def follow(
    request: Request,
    experiment_id: Id,
    driver: uuid.UUID,
    run: ExperimentRunAuth,
    db: Db,
    hub: HubOf,
    state: str | None = None,
    timeout_s: Seconds = 0.0,
) -> Response:
    """Trials without a run in Prefect; waits for one, or until the state is not ``state``."""
    last: Followed | None = None

    async def check() -> Followed | None:
        nonlocal last
        async with reader(db).connect() as conn:
            last = await custom_search.follow(conn, experiment_id, driver)
        return last if last.trials or last.state != state or last.ended else None

    found = await poll_as_driver(request, db, hub, experiment_id, driver, check, timeout_s)
    return JsonResponse(found or last)
