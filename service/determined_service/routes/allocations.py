"""Allocations: the preemption signal, and what supervisors report of their processes."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from determined_registry.tables import allocations, model_definitions
from determined_service.api.state import Db, HubOf
from determined_service.auth import AgentAuth, AllocationOrUser, ended
from determined_service.control import allocations as allocating
from determined_service.control.change import changing, reader
from determined_service.control.exits import ExitKind
from determined_service.control.legs import Exit, end_leg
from determined_service.errors import NotFound
from determined_service.json import JsonResponse
from determined_service.routes.waiting import poll, wait_seconds

router = APIRouter(prefix="/api/v1/allocations", tags=["Allocations"])
internal = APIRouter(prefix="/internal/v1", tags=["Agents"])


@router.get("/{allocation_id}/signals/preemption")
async def preemption_signal(
    request: Request,
    allocation_id: str,
    principal: AllocationOrUser,
    db: Db,
    hub: HubOf,
    timeout_s: float | None = None,
    timeoutSeconds: float | None = None,  # noqa: N803, upstream's name
    timeout_seconds: float | None = None,
) -> Response:
    """``preempt`` is true once the process is to save a checkpoint and exit; waits until then."""
    principal.require_allocation(allocation_id)
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

    found = await poll(request, hub, [f"allocation:{allocation_id}"], check, timeout)
    return JsonResponse({"preempt": bool(found)})


@router.post("/{allocation_id}/signals/ack_preemption")
async def acknowledge(allocation_id: str, principal: AllocationOrUser, db: Db) -> Response:
    """The process will exit, and its exit is not final: it may be started again."""
    principal.require_allocation(allocation_id)
    async with reader(db).connect() as conn:
        await allocating.acknowledge_preemption(conn, allocation_id)
    return JsonResponse({})


class Started(BaseModel):
    """Where the process runs."""

    pid: int | None = None
    host: str | None = None


@internal.post("/allocations/{allocation_id}/running")
async def running(allocation_id: str, given: Started, agent: AgentAuth, db: Db) -> Response:
    """The process has started. 409: it must not run (any more), and is to be killed."""
    async with changing(db) as change:
        await allocating.start(change, allocation_id, given.pid)
    return JsonResponse({})


class Exited(BaseModel):
    """How the process ended; ``reason`` in words, where more is known than the code."""

    exit_code: int | None = None
    signal: int | None = None
    kind: Literal["exited", "failed_to_start", "infrastructure"] = "exited"
    reason: str | None = None


@internal.post("/allocations/{allocation_id}/exit")
async def exited(allocation_id: str, given: Exited, agent: AgentAuth, db: Db) -> Response:
    """The process is gone and its logs are shipped. The first report counts."""
    end = Exit(ExitKind(given.kind), given.exit_code, given.signal, given.reason)
    async with changing(db) as change:
        await end_leg(change, allocation_id, end)
    return JsonResponse({})


@internal.get("/model_defs/{hash}")
async def model_definition(hash: str, agent: AgentAuth, db: Db) -> Response:
    """A model definition's files as tar.gz."""
    async with reader(db).connect() as conn:
        found = await conn.execute(
            sa.select(model_definitions.c.archive).where(model_definitions.c.hash == hash)
        )
    archive = found.scalar_one_or_none()
    if archive is None:
        raise NotFound(f"model definition {hash} does not exist")
    return Response(bytes(archive), media_type="application/gzip")
