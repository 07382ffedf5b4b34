"""What tells open pages that they are out of date: one stream of server-sent events for each page in sight.

An event says that something changed and not what, so it shows nobody more than the page itself: the page
fetches itself again. Topics are ``cluster``, and ``experiment:7`` and the like for a thing that the visitor
may see. Reports of metrics are announced for experiments; of an open trial the stream asks now and then how
far it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from determined_service.access.visible import seen_by
from determined_service.base import topics
from determined_service.base.errors import ApiError, BadRequest
from determined_service.base.hub import Hub, wait_at_most
from determined_service.base.streams import Stream
from determined_service.front.rendering import PageRouter
from determined_service.front.visits import LoginNeeded, Visit, Visitor, visitor
from determined_service.web.state import HubOf

router = PageRouter()

MOST_TOPICS = 8
BEAT_S = 5.0
"""How often the stream looks whether its visitor is still logged in, and how far open trials are."""
LEAST_S = 0.5
"""Between two events of one stream."""
LIFE_S = 1800.0
"""After this time the browser connects again."""
_CHANGED = b"event: changed\ndata:\n\n"
_BEAT = b": \n\n"
_PATHS = {
    "experiment": "/experiments/{}",
    "trial": "/trials/{}",
    "task": "/tasks/{}",
    "logs": "/tasks/{}",
    "pipeline": "/pipelines/{}",
}
_CLUSTER = (topics.SCHEDULER, topics.OUTBOX, topics.PIPELINES, topics.RETRAININGS)


@router.get("/events", include_in_schema=False)
async def events(
    visit: Visitor, hub: HubOf, topic: Annotated[list[str], Query(default_factory=list)]
) -> Response:
    """The stream; it ends when the visitor's session does."""
    if len(topic) > MOST_TOPICS:
        raise BadRequest(f"{len(topic)} topics, at most {MOST_TOPICS} are allowed")
    watched: set[str] = set()
    trials: list[str] = []
    for one in topic:
        kind, _, name = one.partition(":")
        if kind == "cluster":
            # Who sees a part of the cluster is not told when the rest of it changes.
            watched |= set() if seen_by(visit.subject) is not None else set(_CLUSTER)
            continue
        if kind not in _PATHS or not name.isprintable() or "/" in name or "?" in name:
            raise BadRequest("topic: give cluster, or experiment:7, trial:7, task:…, pipeline:7")
        await visit.get(_PATHS[kind].format(name))
        watched.add(one)
        if kind == "trial":
            trials.append(name)
    return Stream(
        _told(visit, hub, watched, trials, "cluster" in topic),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _told(
    visit: Visit, hub: Hub, watched: set[str], trials: list[str], of_cluster: bool
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    ends = loop.time() + LIFE_S
    limited = of_cluster and seen_by(visit.subject) is not None
    how_far = await _how_far(visit, trials)
    yield b"retry: 2000\n\n"
    with hub.subscribe([*watched, topics.user(visit.subject.user_id)]) as event:
        while not hub.closed and loop.time() < ends:
            event.clear()
            changed = await wait_at_most(event, BEAT_S)
            try:
                await visitor(visit.request)
            except (LoginNeeded, ApiError):
                return
            now = await _how_far(visit, trials)
            if changed or limited or now != how_far:
                how_far = now
                yield _CHANGED
                await asyncio.sleep(LEAST_S)
            else:
                yield _BEAT


async def _how_far(visit: Visit, trials: list[str]) -> list[object]:
    """What changes in trials while they train; of those that have ended nothing is asked any more."""
    found: list[object] = []
    for one in list(trials):
        with contextlib.suppress(ApiError):
            trial = (await visit.get(f"/trials/{one}"))["trial"]
            if trial.get("endTime"):
                trials.remove(one)
            found.append([trial["state"], trial.get("totalBatchesProcessed"), trial.get("endTime")])
    return found
