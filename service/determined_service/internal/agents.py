"""Routes of agents: registration and work."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from determined.common.wire import paths
from determined.common.wire.agents import (
    AgentState,
    Registered,
    Registration,
    SignOff,
    TrialClaim,
    Work,
    WorkRequest,
)
from determined.common.wire.times import HEARTBEAT_S
from determined.common.wire.version import VERSION
from determined_service.access.dependencies import AgentAuth, TrialRunAuth
from determined_service.base import topics
from determined_service.base.bounds import Id, Name
from determined_service.base.errors import Conflict
from determined_service.base.json import JsonResponse
from determined_service.lifecycle import agents as agenting
from determined_service.lifecycle import claims, gone_agents, machines, notices
from determined_service.lifecycle.leg_orders import leg_specs
from determined_service.state.change import changing, reader
from determined_service.state.task_kinds import TRIAL
from determined_service.web.router import Router
from determined_service.web.state import Db, HubOf, SettingsOf
from determined_service.web.waiting import poll, wait_seconds

router = Router("Agents")


@router.post(paths.REGISTER)
async def register(
    agent_id: Name, given: Registration, agent: AgentAuth, db: Db, settings: SettingsOf
) -> Response:
    """Registers an agent. ``kill`` in the answer: processes that must die.

    400 for an agent of a release that this service does not understand.
    """
    kill = await agenting.register(db, agent_id, given)
    return JsonResponse(Registered(str(settings.cluster_id), kill, wire=VERSION, takes_signed=True))


@router.post(paths.WORK)
async def work(
    request: Request,
    agent_id: Name,
    given: WorkRequest,
    agent: AgentAuth,
    db: Db,
    hub: HubOf,
    settings: SettingsOf,
) -> Response:
    """The legs to launch and to kill; waits until there are some. Every call is a heartbeat."""
    heartbeats: agenting.Heartbeats = request.app.state.heartbeats
    reminders: agenting.Reminders = request.app.state.reminders
    agenting.require_understood(agent_id, given.wire)
    last: Work | None = None

    async def check() -> Work | None:
        nonlocal last
        async with reader(db).connect() as conn:
            last, urgent, unstarted, refused = await agenting.find_work(
                conn, agent_id, given, settings
            )
        if unstarted:
            await agenting.kill_unstarted(db, agent_id, given.running)
        if refused:
            await agenting.refuse(db, agent_id, refused)
        return last if urgent or reminders.is_due(given.session, _repeated(last)) else None

    pool = await heartbeats.beat(db, agent_id, given.session)
    if given.package_bytes is not None:
        await agenting.note_packages(db, agent_id, given.package_bytes)
    if given.programs is not None:
        await agenting.note_programs(db, agent_id, given.programs)
    awaited = [topics.agent(agent_id), topics.pool(pool)]
    timeout = wait_seconds(given.timeout_s, limit=HEARTBEAT_S * 2)
    found = await poll(request, hub, awaited, check, timeout)
    if found is None and await request.is_disconnected():
        await heartbeats.suspect(db, agent_id, given.session)
    if last is None:
        return JsonResponse({})  # it hung up before there was an answer
    reminders.note(given.session, _repeated(last))
    return JsonResponse(found or last)


def _repeated(work: Work) -> list[str]:
    """What the agent is told again and again, until it is done."""
    return [*work.kill, *(f"door {key}" for key in work.doors)]


@router.post(paths.AGENT_STATE)
async def state(agent_id: Name, given: AgentState, agent: AgentAuth, db: Db) -> Response:
    """The agent has other slots, a leg waits for something else or has got a machine, or a leg's machine goes
    away. 409: register first."""
    await agenting.note_state(db, agent_id, given)
    await machines.note_machines(db, agent_id, given.machines)
    await notices.note_of_agent(db, agent_id, given.leaving)
    return JsonResponse({})


@router.post(paths.SIGN_OFF)
async def sign_off(agent_id: Name, given: SignOff, agent: AgentAuth, db: Db) -> Response:
    """The agent takes no more work. A session that is not its own (any more) changes nothing."""
    await gone_agents.sign_off(db, agent_id, given.session)
    return JsonResponse({})


@router.post(paths.CLAIM)
async def claim(
    trial_id: Id, given: TrialClaim, run: TrialRunAuth, db: Db, settings: SettingsOf
) -> Response:
    """The waiting leg of the trial, for a worker that is not an agent; 409 when none waits."""
    try:
        async with changing(db) as change:
            allocation_id = await claims.claim(change, trial_id, given.flow_run_id, given.agent_id)
            (spec,) = await leg_specs(change.conn, {allocation_id: TRIAL}, settings)
    except Conflict:
        async with changing(db) as change:
            await claims.correct_run(change, trial_id)
        raise
    return JsonResponse(spec)
