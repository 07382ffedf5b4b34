"""Ways into tasks that run: what `det exec`, `det attach` and `det trial dump` ask for."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from determined.common.wire import doors as wire
from determined.common.wire import gate, limits
from determined.common.wire.doors import Hello
from determined_service.access import visits
from determined_service.access.authenticator import Authenticator
from determined_service.access.dependencies import may
from determined_service.access.principal import USER, Principal
from determined_service.access.rules import Action
from determined_service.access.targets import Kind
from determined_service.access.tokens import bearer_token
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.errors import Conflict, Unauthenticated
from determined_service.base.hub import Hub
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import doors
from determined_service.proxy import beside, names, passing
from determined_service.state.change import changing, reader
from determined_service.views.tasks import require_task
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf, SettingsOf
from determined_service.web.waiting import poll

router = Router("Tasks")

Entrant = Annotated[Principal, may(Action.ENTER, Kind.TASK, "enter")]


class DoorRequest(BaseModel):
    """``node``: which of a gang's machines. ``again``: the door that is said to be open does not answer.
    ``page``: the answer tells a page of the service's own how it connects."""

    node: int = Field(0, ge=0, le=10_000)
    again: bool = False
    page: bool = False


@router.post("/api/v1/tasks/{task_id}/doors")
async def open_door(
    request: Request, task_id: str, given: DoorRequest, user: Entrant, db: Db, hub: HubOf
) -> Response:
    """`port` and `secret` of a way into the task, `/proxy/<task>:<port>`, once its agent has opened it.

    `nodes`: on how many machines it runs. `page`, if it was asked for: `address` and `protocols` of a
    websocket, good once, within a minute. 409: it does not run now, or its agent does not open it.
    """
    if given.page and user.kind != USER:
        raise Conflict(
            "only a user's session opens terminals in pages; this is the token of a process"
        )
    asked, secret = await _opened(request, task_id, given.node, given.again, db, hub)
    found: dict[str, Any] = {"port": wire.port_name(given.node), "secret": secret}
    if given.page:
        found["page"] = await _for_page(request, task_id, found["port"], db)
    return JsonResponse(
        {**found, "node": given.node, "nodes": asked.nodes, "agentId": asked.agent_id}
    )


async def _for_page(request: Request, task_id: str, port: str, db: Database) -> dict[str, Any]:
    """The address and the subprotocols of a websocket to the port. Raises Unauthenticated."""
    auth: Authenticator = request.app.state.auth
    session = auth.session_of(bearer_token(request.headers))
    async with db.tx() as conn:
        ticket = await visits.new_ticket(conn, session, task_id, port)
    if ticket is None:
        raise Unauthenticated("the session has ended: log in again")
    return {
        "address": f"{names.TERMINALS.decode()}{quote(f'{task_id}:{port}', safe=':')}",
        "protocols": [passing.TERMINAL, passing.TICKET + ticket],
    }


async def _opened(
    request: Request, task_id: str, node: int, again: bool, db: Database, hub: Hub
) -> tuple[doors.Asked, str]:
    """The door and its secret, once its agent has opened it. Raises NotFound, Conflict."""
    async with reader(db).connect() as conn:
        await require_task(conn, task_id)
    async with changing(db) as change:
        asked = await doors.ask(change, task_id, node, again)

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
    return asked, secret


STACKS_S = 60.0
"""So long the stacks of one node's processes may take; py-spy stops each process for a moment."""
STACKS_BYTES = limits.MIB
"""The longest answer."""


class OfNode(BaseModel):
    """``node``: which of a gang's machines."""

    node: int = Field(0, ge=0, le=10_000)


@router.post("/api/v1/tasks/{task_id}/stacks")
async def dump_stacks(
    request: Request,
    task_id: str,
    given: OfNode,
    user: Entrant,
    db: Db,
    hub: HubOf,
    settings: SettingsOf,
) -> Response:
    """`stacks`: where each Python process of a task is at this moment, as text, on one of its `nodes`.

    `problem`: why it is not all, in words; null: it is. 409: the task does not run now, or its agent does not
    open it. `det trial dump` prints the same.
    """
    for again in (False, True):
        asked, secret = await _opened(request, task_id, given.node, again, db, hub)
        name = wire.port_name(given.node)
        async with reader(db).connect() as conn:
            way = await doors.way_to(conn, asked.allocation_id, name)
        token = settings.agent_token.get_secret_value()
        key = gate.key(token, asked.allocation_id, name) if way.behind else b""
        # Its options keep the task's files from being imported in the place of the platform's.
        hello = Hello(["python3", "-P", "-m", wire.STACKS])
        try:
            found = await beside.run(
                way.address, way.port, key, hello, secret, most=STACKS_BYTES, seconds=STACKS_S
            )
        except (OSError, TimeoutError) as error:
            # Its supervisor has closed it at this moment, or was killed: it is asked once more.
            if again:
                raise Conflict(
                    f"the service does not reach task {task_id} on agent {asked.agent_id}: {error}"
                ) from error
        else:
            break
    problem = found.why or ("no process could be looked at" if found.code else None)
    return JsonResponse(
        {
            "stacks": found.text,
            "problem": problem,
            "node": given.node,
            "nodes": asked.nodes,
            "agentId": asked.agent_id,
        }
    )
