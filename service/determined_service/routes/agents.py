"""What agents say and ask."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from determined_service.api.state import Db, HubOf, SettingsOf
from determined_service.auth import AgentAuth
from determined_service.control import agents as agenting
from determined_service.control import claims
from determined_service.control.change import changing, reader
from determined_service.control.launch import leg_specs
from determined_service.errors import Conflict
from determined_service.json import JsonResponse
from determined_service.routes.waiting import poll, wait_seconds

router = APIRouter(prefix="/internal/v1", tags=["Agents"])
_heartbeats = agenting.Heartbeats()
_reminders = agenting.KillReminders()


class Registration(BaseModel):
    """An agent that has started. ``allocations``: those whose supervisors are alive."""

    session: uuid.UUID
    resource_pool: str = "default"
    host: str = ""
    version: str = ""
    slot_type: str = "cpu"
    slots: list[dict[str, Any]] = Field(default_factory=list)
    allocations: list[str] = Field(default_factory=list)


@router.post("/agents/{agent_id}/register")
async def register(
    agent_id: str, given: Registration, agent: AgentAuth, db: Db, settings: SettingsOf
) -> Response:
    """Makes the agent known; ``kill`` in the answer: processes that must die."""
    kill = await agenting.register(db, agent_id, agenting.AgentFacts(**dict(given)))
    return JsonResponse(
        {
            "cluster_id": settings.cluster_id,
            "heartbeat_s": agenting.HEARTBEAT_S,
            "kill": kill,
        }
    )


class WorkRequest(BaseModel):
    """``running``: allocations it has started and not yet reported ended."""

    session: uuid.UUID
    running: list[str] = Field(default_factory=list)
    prefect_poll_seq: int = -1
    timeout_s: float = agenting.HEARTBEAT_S


@router.post("/agents/{agent_id}/work")
async def work(
    request: Request,
    agent_id: str,
    given: WorkRequest,
    agent: AgentAuth,
    db: Db,
    hub: HubOf,
    settings: SettingsOf,
) -> Response:
    """What to launch and to kill; waits until there is something. Every call is a heartbeat."""
    last: dict[str, Any] = {}

    async def check() -> dict[str, Any] | None:
        nonlocal last
        async with reader(db).connect() as conn:
            last, urgent = await agenting.find_work(
                conn, agent_id, given.session, given.running, given.prefect_poll_seq, settings
            )
        if last.pop("unstarted"):
            await agenting.kill_unstarted(db, agent_id, given.running)
        return last if urgent or _reminders.is_due(given.session, last["kill"]) else None

    pool = await _heartbeats.beat(db, agent_id, given.session)
    topics = [f"agent:{agent_id}", f"pool:{pool}"]
    timeout = wait_seconds(given.timeout_s, limit=agenting.HEARTBEAT_S * 2)
    found = await poll(request, hub, topics, check, timeout)
    if not last:
        return JsonResponse({})  # it hung up before there was an answer
    _reminders.note(given.session, last["kill"])
    return JsonResponse(found or last)


class Claim(BaseModel):
    """A Prefect worker that executes the trial's flow run itself."""

    flow_run_id: uuid.UUID
    agent_id: str = "prefect-worker"


@router.post("/trials/{trial_id}/claim")
async def claim(
    trial_id: int, given: Claim, agent: AgentAuth, db: Db, settings: SettingsOf
) -> Response:
    """The waiting leg of the trial, for a worker that no agent is; 409 when none waits."""
    try:
        async with changing(db) as change:
            allocation_id = await claims.claim(change, trial_id, given.flow_run_id, given.agent_id)
            (spec,) = await leg_specs(change.conn, [allocation_id], settings)
    except Conflict:
        async with changing(db) as change:
            await claims.correct_run(change, trial_id)
        raise
    return JsonResponse(spec)
