"""Tasks of every kind, with owners, allocations and logs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import SchedulerConfig
from determined_registry.database.tables import (
    allocation_ports,
    allocations,
    deletions,
    kept_runs,
    task_logs,
    tasks,
    users,
)
from determined_service.base import topics
from determined_service.base.errors import NotFound
from determined_service.deleting.deletions import POLICY
from determined_service.lifecycle.kinds.base import TaskFacts
from determined_service.lifecycle.kinds.generic import GIVEN
from determined_service.lifecycle.kinds.launched import LaunchedKind
from determined_service.lifecycle.kinds.table import KINDS, facts_of, slot_kind
from determined_service.state import nodes, states
from determined_service.views.secrets import Viewer
from determined_service.views.values import SCHEDULER_TYPES, moment, state

k = tasks.c


async def _facts(conn: AsyncConnection, task_id: str) -> TaskFacts | None:
    kind = await conn.execute(sa.select(k.kind).where(k.id == task_id))
    name = kind.scalar_one_or_none()
    return None if name is None else (await facts_of(conn, {task_id: name})).get(task_id)


async def require_task(conn: AsyncConnection, task_id: str) -> None:
    """Raises NotFound for an unknown task. A task is known when it has a row or a log line."""
    for column in (k.id, task_logs.c.task_id):
        found = await conn.execute(sa.select(column).where(column == task_id).limit(1))
        if found.first() is not None:
            return
    raise NotFound(f"task {task_id!r} does not exist")


async def announced(conn: AsyncConnection, task_id: str) -> list[str]:
    """The topics that are announced when the task logs something or ends."""
    facts = await _facts(conn, task_id)
    return [topics.logs(task_id), *([] if facts is None else [facts.topic])]


async def has_ended(conn: AsyncConnection, task_id: str) -> bool:
    """True if the task has ended for good, so that it will not log anything more."""
    facts = await _facts(conn, task_id)
    if facts is not None and facts.state not in states.TERMINAL:
        return False
    live = await conn.execute(
        sa.select(allocations.c.id)
        .where(allocations.c.task_id == task_id, allocations.c.state != states.TERMINATED)
        .limit(1)
    )
    return live.first() is None


# A configuration as it was given may be large, and is read by itself.
_DATA = (k.data - GIVEN).label("data")
# A deletion's run is a kept one.
_KEPT = (
    sa.select(kept_runs.c.flow_run_id)
    .join(deletions, deletions.c.id == kept_runs.c.deletion_id)
    .where(deletions.c.task_id == k.id)
    .scalar_subquery()
)
_RUN = sa.func.coalesce(k.flow_run_id, _KEPT)
_TASKS = sa.select(
    k.id, k.kind, k.owner_id, k.start_time, _RUN.label("flow_run_id"), k.parent_id, k.forked_from, _DATA,
    k.submitted_by,    users.c.username,
).join(users, users.c.id == k.owner_id)  # fmt: skip


async def get_task(conn: AsyncConnection, task_id: str, viewer: Viewer) -> dict[str, Any]:
    """``v1Task``; raises NotFound."""
    rows = (await conn.execute(_TASKS.where(k.id == task_id))).all()
    if not rows:
        raise NotFound(f"task {task_id!r} does not exist")
    found = await _tasks_json(conn, rows)
    if not found:
        raise NotFound(f"task {task_id!r} does not exist")
    row, kind = rows[0], KINDS[rows[0].kind]
    config = await kind.config(conn, task_id)
    if isinstance(kind, LaunchedKind):
        shown = viewer.task_config(config, row.owner_id, task_id, row.submitted_by)
    else:
        shown = viewer.config_of_trial(config, row.owner_id, task_id)
    return found[0] | {"config": None if shown is None else json.dumps(shown)}


async def list_tasks(
    conn: AsyncConnection, kinds: Sequence[str], offset: int, limit: int
) -> list[dict[str, Any]]:
    """``v1Task`` of each task of the ``kinds`` (none named: of any), the latest first."""
    wanted = _TASKS.order_by(k.start_time.desc(), k.id.desc()).offset(offset).limit(limit)
    if kinds:
        wanted = wanted.where(k.kind.in_(kinds))
    return await _tasks_json(conn, (await conn.execute(wanted)).all())


async def _tasks_json(conn: AsyncConnection, rows: Sequence[sa.Row[Any]]) -> list[dict[str, Any]]:
    facts = await facts_of(conn, {row.id: row.kind for row in rows})
    held: dict[str, list[dict[str, Any]]] = {row.id: [] for row in rows}
    kinds = {row.id: row.kind for row in rows}
    found = await conn.execute(
        sa.select(allocations, _DATA)
        .join(tasks, k.id == allocations.c.task_id)
        .where(allocations.c.task_id.in_(list(held)))
        .order_by(allocations.c.requested_at, allocations.c.id)
    )
    for row in found:
        held[row.task_id].append(_allocation_json(row, kinds[row.task_id]))
    # One that has just been deleted has no facts.
    return [_task_json(row, facts[row.id], held[row.id]) for row in rows if row.id in facts]


def _task_json(row: sa.Row[Any], facts: TaskFacts, held: list[dict[str, Any]]) -> dict[str, Any]:
    """Ours: ``name``, ``state``, ``reason``, ``userId``, ``username``, ``projectId``, ``flowRunId``,
    ``trialId``, and an allocation's ``exitSignal``."""
    # Upstream's tasks know one stop less.
    shown = facts.state.replace(states.STOPPING_KILLED, states.STOPPING_CANCELED)
    return {
        "taskId": row.id,
        "taskType": f"TASK_TYPE_{row.kind}",
        "taskState": f"GENERIC_TASK_{state(shown)}",
        "startTime": moment(row.start_time),
        "endTime": moment(facts.end_time),
        "allocations": held,
        "name": facts.name,
        "state": state(facts.state),
        "reason": facts.reason,
        "userId": row.owner_id,
        "username": row.username,
        "projectId": facts.project_id,
        "trialId": facts.trial_id,
        "flowRunId": row.flow_run_id and str(row.flow_run_id),
        "parentId": row.parent_id,
        "forkedFrom": row.forked_from,
        "noPause": bool((row.data or {}).get("no_pause")),
    }


_STATES = {
    states.REQUESTED: "STATE_QUEUED",
    states.ASSIGNED: "STATE_STARTING",
    states.RUNNING: "STATE_RUNNING",
    states.TERMINATED: "STATE_TERMINATED",
}


def _allocation_json(row: sa.Row[Any], kind: str) -> dict[str, Any]:
    return {
        "allocationId": row.id,
        "taskId": row.task_id,
        "state": _STATES.get(row.state, "STATE_UNSPECIFIED"),
        "isReady": slot_kind(kind).is_ready(row),
        "slots": row.slots,
        "startTime": moment(row.started_at),
        "endTime": moment(row.ended_at),
        "exitReason": row.reason,
        "statusCode": row.exit_code,
        "exitSignal": row.exit_signal,
    }


async def _proxy_ports(conn: AsyncConnection) -> dict[str, list[dict[str, Any]]]:
    """``v1ProxyPortConfig`` of all live allocations. ``port``: as the process knows it."""
    found = defaultdict[str, list[dict[str, Any]]](list)
    p = allocation_ports.c
    for row in await conn.execute(sa.select(allocation_ports).order_by(p.allocation_id, p.name)):
        found[row.allocation_id].append(
            {
                "port": row.behind or row.port,
                "proxyTcp": row.tcp,
                "serviceId": row.task_id if row.is_default else f"{row.task_id}:{row.name}",
                "unauthenticated": row.unauthenticated,
            }
        )
    return found


_DELETIONS = sa.text(
    """
    SELECT k.id, k.name, k.start_time, d.kind, d.experiment_id
    FROM deletions d JOIN tasks k ON k.id = d.task_id
    WHERE k.state = :active ORDER BY d.id
    """
)


async def _deletions(conn: AsyncConnection) -> dict[str, dict[str, Any]]:
    """They hold no slots and have no allocation, but scripts look for the name that Determined gives the
    collection of checkpoints: when it is listed no more, it is over."""
    rows = await conn.execute(_DELETIONS, {"active": states.ACTIVE})
    found = {}
    for row in rows:
        collects = row.kind == POLICY
        key = f"{row.id}.1"
        found[key] = {
            "allocationId": key,
            "taskId": row.id,
            "name": f"Checkpoint GC (Experiment {row.experiment_id})" if collects else row.name,
            "registeredTime": moment(row.start_time),
            "resourcePool": "",
            "slotsNeeded": 0,
            "priority": 0,
            "schedulerType": "SCHEDULER_TYPE_UNSPECIFIED",
            "resources": [],
            "proxyPorts": [],
        }
    return found


async def running_summaries(
    conn: AsyncConnection, scheduler_of: Callable[[str], SchedulerConfig]
) -> dict[str, dict[str, Any]]:
    """Live allocations by id, as ``v1AllocationSummary``, and the deletions that are under way.

    ``scheduler_of``: the scheduler of a pool.
    """
    found = await conn.execute(
        sa.select(allocations, k.kind)
        .join(tasks, k.id == allocations.c.task_id)
        .where(allocations.c.state != states.TERMINATED)
        .order_by(allocations.c.requested_at, allocations.c.id)
    )
    rows = found.all()
    facts = await facts_of(conn, {row.task_id: row.kind for row in rows})
    gangs = await nodes.of_allocations(conn, [row.id for row in rows if row.nodes > 1])
    ports = await _proxy_ports(conn)
    schedulers = {pool: scheduler_of(pool) for pool in {row.resource_pool for row in rows}}
    return await _deletions(conn) | {
        row.id: {
            "allocationId": row.id,
            "taskId": row.task_id,
            "name": facts[row.task_id].name,
            "registeredTime": moment(row.requested_at),
            "resourcePool": row.resource_pool,
            "slotsNeeded": row.slots,
            "priority": row.priority or schedulers[row.resource_pool].default_priority,
            "schedulerType": SCHEDULER_TYPES[schedulers[row.resource_pool].type],
            "resources": [
                {
                    "resourcesId": one.id,
                    "resourcesType": "RESOURCES_TYPE_UNSPECIFIED",
                    "containerId": one.id,
                    "allocationId": row.id,
                    "agentDevices": {one.agent_id: {"devices": []}},
                }
                for one in gangs.get(row.id, [row])
                if one.agent_id
            ],
            "proxyPorts": ports.get(row.id, []),
        }
        for row in rows
        if row.task_id in facts
    }
