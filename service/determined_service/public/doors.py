"""Ways into tasks that run: what `det exec`, `det attach` and `det trial dump` ask for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from determined.common.wire import doors as wire
from determined_service.access.dependencies import may
from determined_service.access.principal import Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.base import topics
from determined_service.base.errors import Conflict
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import doors
from determined_service.state.change import changing, reader
from determined_service.views.tasks import require_task
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf
from determined_service.web.waiting import poll

router = Router("Tasks")

Entrant = Annotated[Principal, may(Action.ENTER, Kind.TASK, "enter")]


class DoorRequest(BaseModel):
    """``node``: which of a gang's machines. ``again``: the door that is said to be open does not answer."""

    node: int = Field(0, ge=0, le=10_000)
    again: bool = False


@router.post("/api/v1/tasks/{task_id}/doors")
async def open_door(
    request: Request, task_id: str, given: DoorRequest, user: Entrant, db: Db, hub: HubOf
) -> Response:
    """`port` and `secret` of a way into the task, `/proxy/<task>:<port>`, once its agent has opened it.

    `nodes`: on how many machines it runs. 409: it does not run now, or its agent does not open it.
    """
    async with reader(db).connect() as conn:
        await require_task(conn, task_id)
    async with changing(db) as change:
        asked = await doors.ask(change, task_id, given.node, given.again)

    async def check() -> str | None:
        async with reader(db).connect() as conn:
            return await doors.open_secret(conn, asked)

    watched = [topics.task(task_id), topics.allocation(asked.allocation_id)]
    secret = await poll(request, hub, watched, check, wire.OPEN_SECONDS)
    if secret is None:
        raise Conflict(
            f"agent {asked.agent_id} has not opened task {task_id} within {wire.OPEN_SECONDS:.0f} s: it is"
            " busy or away, or of a release that cannot; try again (det agent list)"
        )
    found = {"port": wire.port_name(given.node), "secret": secret}
    return JsonResponse(
        {**found, "node": given.node, "nodes": asked.nodes, "agentId": asked.agent_id}
    )
