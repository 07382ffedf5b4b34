"""Allocations: the preemption signal, and its acknowledgement."""

from __future__ import annotations

import sqlalchemy as sa
from fastapi import Request
from starlette.responses import Response

from determined_registry.database.tables import allocations
from determined_service.access.dependencies import AllocationReporter
from determined_service.access.principal import ended
from determined_service.base import topics
from determined_service.base.bounds import Seconds
from determined_service.base.errors import NotFound
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import allocations as allocating
from determined_service.state.change import reader
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf
from determined_service.web.waiting import poll, wait_seconds

router = Router("Allocations", "/api/v1/allocations")


@router.get("/{allocation_id}/signals/preemption")
async def preemption_signal(
    request: Request,
    allocation_id: str,
    principal: AllocationReporter,
    db: Db,
    hub: HubOf,
    timeout_s: Seconds | None = None,
    timeoutSeconds: Seconds | None = None,  # noqa: N803, upstream's name
    timeout_seconds: Seconds | None = None,
) -> Response:
    """``preempt`` is true once the process must save a checkpoint and exit; waits until then."""
    timeout = wait_seconds(timeout_s, timeoutSeconds, timeout_seconds, default=60.0)

    async def check() -> bool | None:
        async with reader(db).connect() as conn:
            found = await conn.execute(
                sa.select(allocations.c.preempt_requested_at, allocations.c.state).where(
                    allocations.c.id == allocation_id
                )
            )
        row = found.first()
        if row is None:
            raise NotFound(f"allocation {allocation_id} does not exist")
        if row.state == "TERMINATED":
            raise ended(allocation_id)
        return row.preempt_requested_at is not None or None

    found = await poll(request, hub, [topics.allocation(allocation_id)], check, timeout)
    return JsonResponse({"preempt": bool(found)})


@router.post("/{allocation_id}/signals/ack_preemption")
async def acknowledge(allocation_id: str, principal: AllocationReporter, db: Db) -> Response:
    """The process will exit, and its exit is not final: it may be started again."""
    async with reader(db).connect() as conn:
        await allocating.acknowledge_preemption(conn, allocation_id)
    return JsonResponse({})
