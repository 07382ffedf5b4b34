"""Why an experiment is as it is: what became of each leg, and what it waits for, in words.

Reads only. What the scheduler would say of the requests that it does not place is
:func:`why_queued`, a pure function of the scheduler's own snapshot.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.tables import allocations, experiments, legs, searches, trials
from determined_service.control import lifecycle as states
from determined_service.control import unmanaged
from determined_service.control.placement import read_snapshot, waiting_requests
from determined_service.control.scheduler import Agent, Request, Snapshot
from determined_service.errors import NotFound
from determined_service.views.values import moment, state

DRIVER_QUIET_S = 20.0
"""A flow that drives a search reads its events at least every 10 s."""


async def explain(
    conn: AsyncConnection, experiment_id: int, agent_timeout_s: float
) -> dict[str, Any]:
    """``{"legs": […], "waiting": […]}``.

    Each leg has ``trialId``, ``runId``, ``state``, ``reason``, ``agentId``, ``slotIds``, ``exitCode`` and its
    times. What waits has ``trialId`` (null: the experiment itself), ``since``, ``reason`` in words, and where
    slots are wanted ``resourcePool``, ``slotsWanted``, ``slotsFree``. Raises NotFound.
    """
    row = (
        await conn.execute(
            sa.select(
                experiments.c.state,
                experiments.c.reason,
                experiments.c.start_time,
                experiments.c.unmanaged,
                experiments.c.flow_run_id,
                searches.c.driver_seen_at,
                sa.extract("epoch", sa.func.now() - searches.c.driver_seen_at).label("silent_s"),
            )
            .outerjoin(searches, searches.c.experiment_id == experiments.c.id)
            .where(experiments.c.id == experiment_id)
        )
    ).first()
    if row is None:
        raise NotFound(f"experiment {experiment_id} does not exist")
    waiting = _of_experiment(row)
    if row.unmanaged:
        waiting += await _of_scripts(conn, experiment_id)
    else:
        waiting += await _of_trials(conn, experiment_id, agent_timeout_s)
    return {"legs": await _legs(conn, experiment_id), "waiting": waiting}


async def _legs(conn: AsyncConnection, experiment_id: int) -> list[dict[str, Any]]:
    a = allocations.c
    rows = await conn.execute(
        sa.select(legs, a.agent_id, a.slot_ids, a.exit_code)
        .join(trials, trials.c.id == legs.c.trial_id)
        .outerjoin(allocations, a.id == legs.c.allocation_id)
        .where(trials.c.experiment_id == experiment_id)
        .order_by(legs.c.trial_id, legs.c.run_id)
    )
    return [
        {
            "trialId": row.trial_id,
            "runId": row.run_id,
            "allocationId": row.allocation_id,
            "state": state(row.state),
            "reason": row.reason,
            "agentId": row.agent_id,
            "slotIds": row.slot_ids,
            "exitCode": row.exit_code,
            "startTime": moment(row.start_time),
            "endTime": moment(row.end_time),
        }
        for row in rows
    ]


def _waits(trial_id: int | None, since: Any, reason: str, **more: Any) -> dict[str, Any]:
    return {"trialId": trial_id, "since": moment(since), "reason": reason, **more}


def _of_experiment(row: sa.Row[Any]) -> list[dict[str, Any]]:
    if row.state == states.PAUSED:
        return [_waits(None, None, row.reason or "it was created paused")]
    if row.state != states.ACTIVE or row.unmanaged:
        return []
    if row.driver_seen_at is None:
        if row.flow_run_id is None:
            return [_waits(None, row.start_time, "Prefect has not been given its run yet")]
        reason = "no flow drives its search yet: its run waits in Prefect for an agent to start it"
        return [_waits(None, row.start_time, reason)]
    if row.silent_s > DRIVER_QUIET_S:
        reason = (
            f"the flow that drives its search has not been heard of for {row.silent_s:.0f} s;"
            " trials that train go on, the searcher decides nothing"
        )
        return [_waits(None, row.driver_seen_at, reason)]
    return []


_TRIALS = sa.text(
    """
    SELECT t.id AS trial_id, t.op_complete, t.closed, a.id, a.state, a.agent_id, a.requested_at,
           a.assigned_at, a.resource_pool, a.slots, a.preempt_requested_at, a.kill_requested_at,
           (SELECT max(l.end_time) FROM legs l WHERE l.trial_id = t.id) AS last_end
    FROM trials t LEFT JOIN allocations a ON a.trial_id = t.id AND a.state <> 'TERMINATED'
    WHERE t.experiment_id = :id AND t.state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')
    ORDER BY t.id
    """
)


_SCRIPTS = sa.text(
    """
    SELECT id, seen_at FROM trials
    WHERE experiment_id = :id AND state = 'ACTIVE'
      AND seen_at < now() - make_interval(secs => :quiet)
    ORDER BY id
    """
)


async def _of_scripts(conn: AsyncConnection, experiment_id: int) -> list[dict[str, Any]]:
    """Unmanaged trials wait for nothing but for a script that is not heard of."""
    given = {"id": experiment_id, "quiet": 1.5 * unmanaged.HEARTBEAT_S}
    reason = (
        "no sign of life of its script, which should give one every minute: after "
        f"{unmanaged.SILENT_S / 60:.0f} minutes without it is in error"
    )
    rows = await conn.execute(_SCRIPTS, given)
    return [_waits(row.id, row.seen_at, reason) for row in rows]


async def _of_trials(
    conn: AsyncConnection, experiment_id: int, agent_timeout_s: float
) -> list[dict[str, Any]]:
    found = []
    rows = list(await conn.execute(_TRIALS, {"id": experiment_id}))
    snapshot, why = Snapshot((), ()), dict[str, str]()
    if any(row.state == states.REQUESTED for row in rows):
        snapshot = await read_snapshot(conn, await waiting_requests(conn), agent_timeout_s)
        why = why_queued(snapshot)
    for row in rows:
        if row.state == states.REQUESTED:
            free = free_slots(snapshot, row.resource_pool)
            found.append(
                _waits(
                    row.trial_id,
                    row.requested_at,
                    why.get(row.id, "it was given slots just now"),
                    resourcePool=row.resource_pool,
                    slotsWanted=row.slots,
                    slotsFree=free,
                )
            )
        elif row.kill_requested_at is not None:
            reason = f"its process is being killed by agent {row.agent_id}"
            found.append(_waits(row.trial_id, row.kill_requested_at, reason))
        elif row.preempt_requested_at is not None:
            reason = "its process was asked to save a checkpoint and exit, and has not exited yet"
            found.append(_waits(row.trial_id, row.preempt_requested_at, reason))
        elif row.state == states.ASSIGNED:
            reason = f"agent {row.agent_id} is starting its process"
            found.append(_waits(row.trial_id, row.assigned_at, reason))
        elif row.state is None and row.op_complete and not row.closed:
            reason = (
                "it has trained as far as it was asked to: the searcher decides whether it goes on"
            )
            found.append(_waits(row.trial_id, row.last_end, reason))
    return found


def free_slots(snapshot: Snapshot, pool: str) -> int:
    """Slots of ``pool`` that nobody holds, on agents that may be given work."""
    return sum(
        len(agent.slots) - len(agent.used) for agent in snapshot.agents if agent.pool == pool
    )


def why_queued(snapshot: Snapshot) -> dict[str, str]:
    """Why each request has no slots, by its id, by the rules of :func:`~.scheduler.place`."""
    agents: dict[str, list[Agent]] = defaultdict(list)
    for agent in snapshot.agents:
        agents[agent.pool].append(agent)
    ahead: Counter[str] = Counter()
    found = {}
    for request in snapshot.requests:
        used = snapshot.used_by_group.get(request.group or 0, 0)
        found[request.id] = _why(request, agents[request.pool], used, ahead[request.pool])
        # Who wants no slots is in nobody's way.
        ahead[request.pool] += request.slots > 0
    return found


def _why(request: Request, pool: list[Agent], used: int, ahead: int) -> str:
    wanted = f"wants {_slots(request.slots)} of resource pool {request.pool!r}"
    if not pool:
        return f"{wanted}, which has no agent that is alive and enabled"
    pool = [agent for agent in pool if agent.id not in request.excluded]
    if not pool:
        return (
            f"{wanted}; it must not run on any of its agents, because of what its logs said there"
        )
    widest = max(len(agent.slots) for agent in pool)
    if request.slots > widest:
        return f"{wanted}, whose widest agent has {_slots(widest)}: no agent can ever run it"
    if request.max_slots is not None and used + request.slots > request.max_slots:
        return (
            f"{wanted}; its experiment holds {used} of the {_slots(request.max_slots)} that"
            " resources.max_slots allows"
        )
    frees = [len(agent.slots) - len(agent.used) for agent in pool]
    words = f"{wanted}: {sum(frees)} of {sum(len(agent.slots) for agent in pool)} are free"
    if ahead:
        return f"{words}, {ahead} ahead of it in the queue"
    if sum(frees) >= request.slots > max(frees):
        return f"{words}, but at most {max(frees)} on one agent"
    return words


def _slots(count: int) -> str:
    return f"{count} slot{'' if count == 1 else 's'}"
