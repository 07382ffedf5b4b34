"""What the containers of one allocation ask to find each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from determined_service.api.state import Db, HubOf
from determined_service.auth import AllocationOrUser
from determined_service.control import gangs
from determined_service.control.change import changing, reader
from determined_service.db import Database
from determined_service.errors import Unavailable
from determined_service.hub import Hub
from determined_service.json import JsonResponse
from determined_service.routes.waiting import poll

router = APIRouter(prefix="/api/v1/allocations/{allocation_id}", tags=["Allocations"])
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

    topics = [gangs.topic(allocation_id)]
    found = await poll(request, hub, topics, check, gangs.LIMIT_S)
    if found is None:
        found = await check()  # raises when it was waited long enough
    if found is None:
        raise Unavailable("the service is stopping: ask again")
    return found


class Address(BaseModel):
    """Where the other containers reach this one."""

    address: str


@router.post("/resources/{resources_id}/rendezvous")
async def post_address(
    allocation_id: str, resources_id: str, given: Address, principal: AllocationOrUser, db: Db
) -> Response:
    """A container says where it is."""
    principal.require_allocation(allocation_id)
    async with changing(db) as change:
        await gangs.post_address(change, allocation_id, resources_id, given.address)
    return JsonResponse({})


@router.get("/resources/{resources_id}/rendezvous")
async def rendezvous(
    request: Request,
    allocation_id: str,
    resources_id: str,
    principal: AllocationOrUser,
    db: Db,
    hub: HubOf,
) -> Response:
    """All containers, in the order of their addresses; waits until each has said where it is."""
    principal.require_allocation(allocation_id)
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

    requestUuid: str  # noqa: N815, upstream's names
    numPeers: int  # noqa: N815
    data: Any = None


@router.post("/all_gather")
async def all_gather(
    request: Request,
    allocation_id: str,
    given: Gather,
    principal: AllocationOrUser,
    db: Db,
    hub: HubOf,
) -> Response:
    """Everybody's data, to everybody; waits until all have handed theirs in."""
    principal.require_allocation(allocation_id)
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
