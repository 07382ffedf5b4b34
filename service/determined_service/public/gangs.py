"""Routes by which the containers of one allocation find each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined_service.access.dependencies import AllocationReporter
from determined_service.base import topics
from determined_service.base.bounds import Id, Name
from determined_service.base.db import Database
from determined_service.base.errors import Unavailable
from determined_service.base.hub import Hub
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import gangs
from determined_service.state.change import changing, reader
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf
from determined_service.web.waiting import poll

router = Router("Allocations", "/api/v1/allocations/{allocation_id}")
T = TypeVar("T")


async def _when_all_came(
    request: Request,
    db: Database,
    hub: Hub,
    allocation_id: str,
    find: Callable[[AsyncConnection], Awaitable[T | None]],
) -> T:
    async def check() -> T | None:
        async with reader(db).connect() as conn:
            return await find(conn)

    found = await poll(request, hub, [topics.allocation(allocation_id)], check, gangs.LIMIT_S)
    if found is None:
        found = await check()  # raises when it was waited long enough
    if found is None:
        raise Unavailable("the service is stopping: ask again in a moment")
    return found


class Address(BaseModel):
    """The address at which the other containers reach this one."""

    address: Name


@router.post("/resources/{resources_id}/rendezvous")
async def post_address(
    allocation_id: str, resources_id: str, given: Address, principal: AllocationReporter, db: Db
) -> Response:
    """A container tells its address."""
    async with changing(db) as change:
        await gangs.post_address(change, allocation_id, resources_id, given.address)
    return JsonResponse({})


@router.get("/resources/{resources_id}/rendezvous")
async def rendezvous(
    request: Request,
    allocation_id: str,
    resources_id: str,
    principal: AllocationReporter,
    db: Db,
    hub: HubOf,
) -> Response:
    """All containers, in the order of their addresses; waits until each has told its address."""
    found = await _when_all_came(
        request,
        db,
        hub,
        allocation_id,
        lambda conn: gangs.find_rendezvous(conn, allocation_id, resources_id),
    )
    info = {"addresses": found.addresses, "rank": found.rank, "slots": found.slots}
    return JsonResponse({"rendezvousInfo": info})


class Gather(BaseModel):
    """One process's part. ``requestUuid`` is the same when the request is repeated."""

    requestUuid: Name  # noqa: N815, upstream's names
    numPeers: Id  # noqa: N815
    data: Any = None


@router.post("/all_gather")
async def all_gather(
    request: Request,
    allocation_id: str,
    given: Gather,
    principal: AllocationReporter,
    db: Db,
    hub: HubOf,
) -> Response:
    """The data of all processes; waits until every process has sent its own."""
    async with changing(db) as change:
        await gangs.post_gather(
            change, allocation_id, given.requestUuid, given.numPeers, given.data
        )
    found = await _when_all_came(
        request,
        db,
        hub,
        allocation_id,
        lambda conn: gangs.find_gathered(conn, allocation_id, given.requestUuid),
    )
    return JsonResponse({"data": found})
