"""The long poll of a process that drives a search."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

from fastapi import Request

from determined.common.wire.times import DRIVER_POLL_S
from determined_service.base import topics
from determined_service.base.bounds import Id
from determined_service.base.db import Database
from determined_service.base.hub import Hub
from determined_service.search.drivers import Drivers
from determined_service.web.waiting import T, poll, wait_seconds


async def poll_as_driver(
    request: Request,
    db: Database,
    hub: Hub,
    experiment_id: Id,
    driver: uuid.UUID,
    check: Callable[[], Awaitable[T | None]],
    timeout_s: float,
) -> T | None:
    """As :func:`~determined_service.web.waiting.poll`, on the search's topic; notes that the driver lives."""
    drivers: Drivers = request.app.state.drivers
    await drivers.note(db, experiment_id, driver)
    awaited = [topics.search(experiment_id)]
    found = await poll(request, hub, awaited, check, wait_seconds(timeout_s, limit=DRIVER_POLL_S))
    if found is None and await request.is_disconnected():
        await drivers.suspect(db, experiment_id, driver)
    return found
