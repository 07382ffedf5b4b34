"""Tasks: whatever has allocations and logs. So far every task is a trial."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.tables import allocations, experiments, task_logs, trials
from determined_service.errors import NotFound
from determined_service.views.values import moment

TERMINAL = ("COMPLETED", "CANCELED", "ERROR")


async def _trial(conn: AsyncConnection, task_id: str) -> sa.Row[Any] | None:
    experiment_id, _, request_id = task_id.partition(".")
    if not experiment_id.isdecimal() or len(experiment_id) > 9:
        return None
    found = await conn.execute(
        sa.select(trials, experiments.c.config)
        .join(experiments, experiments.c.id == trials.c.experiment_id)
        .where(trials.c.experiment_id == int(experiment_id), trials.c.request_id == request_id)
    )
    return found.first()


async def require_task(conn: AsyncConnection, task_id: str) -> None:
    """Raises NotFound for a task of which nothing is known."""
    if await _trial(conn, task_id) is not None:
        return
    for table in (allocations, task_logs):
        found = await conn.execute(sa.select(table.c.id).where(table.c.task_id == task_id).limit(1))
        if found.first() is not None:
            return
    raise NotFound(f"task {task_id!r} does not exist")


async def topics(conn: AsyncConnection, task_id: str) -> list[str]:
    """What is announced when the task logs something or ends."""
    found = [f"logs:{task_id}"]
    trial = await _trial(conn, task_id)
    if trial is not None:
        found.append(f"trial:{trial.id}")
    return found


async def has_ended(conn: AsyncConnection, task_id: str) -> bool:
    """Whether nothing of the task runs or will run: nothing more will be logged."""
    trial = await _trial(conn, task_id)
    if trial is not None and trial.state not in TERMINAL:
        return False
    live = await conn.execute(
        sa.select(allocations.c.id)
        .where(allocations.c.task_id == task_id, allocations.c.state != "TERMINATED")
        .limit(1)
    )
    return live.first() is None


async def get_task(conn: AsyncConnection, task_id: str) -> dict[str, Any]:
    """``v1Task``; raises NotFound."""
    await require_task(conn, task_id)
    trial = await _trial(conn, task_id)
    rows = (
        await conn.execute(
            sa.select(allocations)
            .where(allocations.c.task_id == task_id)
            .order_by(allocations.c.requested_at)
        )
    ).all()
    first = rows[0].requested_at if rows else None
    return {
        "taskId": task_id,
        "taskType": "TASK_TYPE_TRIAL" if trial is not None else "TASK_TYPE_UNSPECIFIED",
        "startTime": moment(trial.start_time if trial is not None else first),
        "endTime": moment(trial.end_time if trial is not None else None),
        "allocations": [_allocation_json(row) for row in rows],
    }


_STATES = {
    "REQUESTED": "STATE_QUEUED",
    "ASSIGNED": "STATE_STARTING",
    "RUNNING": "STATE_RUNNING",
    "TERMINATED": "STATE_TERMINATED",
}


def _allocation_json(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "allocationId": row.id,
        "taskId": row.task_id,
        "state": _STATES.get(row.state, "STATE_UNSPECIFIED"),
        "isReady": row.state == "RUNNING",
        "slots": row.slots,
        "startTime": moment(row.started_at),
        "endTime": moment(row.ended_at),
        "exitReason": row.reason,
        "statusCode": row.exit_code,
    }


async def running_summaries(conn: AsyncConnection) -> dict[str, dict[str, Any]]:
    """Live allocations by id, as ``v1AllocationSummary``."""
    rows = await conn.execute(
        sa.select(allocations, experiments.c.name)
        .outerjoin(experiments, experiments.c.id == allocations.c.experiment_id)
        .where(allocations.c.state != "TERMINATED")
        .order_by(allocations.c.requested_at, allocations.c.id)
    )
    return {
        row.id: {
            "allocationId": row.id,
            "taskId": row.task_id,
            "name": f"Trial {row.trial_id} (Experiment {row.experiment_id}: {row.name})",
            "registeredTime": moment(row.requested_at),
            "resourcePool": row.resource_pool,
            "slotsNeeded": row.slots,
            "priority": row.priority,
            "schedulerType": "SCHEDULER_TYPE_PRIORITY",
            "resources": [
                {
                    "resourcesId": row.id,
                    "resourcesType": "RESOURCES_TYPE_UNSPECIFIED",
                    "containerId": row.id,
                    "allocationId": row.id,
                    "agentDevices": {row.agent_id: {"devices": []}},
                }
            ]
            if row.agent_id
            else [],
            "proxyPorts": [],
        }
        for row in rows
    }
