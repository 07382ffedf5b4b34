"""Commands, notebooks, shells and TensorBoards as JSON: ``v1Command`` and its sisters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import (
    allocation_ports,
    allocations,
    tasks,
    users,
    workspaces,
)
from determined_registry.database.tables.people import FIRST
from determined_service.base.errors import NotFound
from determined_service.lifecycle.kinds.launched import LaunchedKind
from determined_service.state import states
from determined_service.views.lists import weight
from determined_service.views.secrets import Viewer
from determined_service.views.values import moment

k, a = tasks.c, allocations.c

_LAST = (
    sa.select(allocations)
    .where(a.task_id == k.id)
    .order_by(a.run_id.desc())
    .limit(1)
    .lateral("last")
)
_l = _LAST.c
_PORTS_READY = (
    sa.select(sa.func.bool_and(allocation_ports.c.ready))
    .where(
        allocation_ports.c.allocation_id == _l.id,
        # The user decides about ports that the user has named (environment.proxy_ports).
        sa.not_(allocation_ports.c.name.regexp_match("^[0-9]+$")),
    )
    .correlate(_LAST)
    .scalar_subquery()
)

SORT_KEYS: dict[str, sa.ColumnElement[Any]] = {
    "UNSPECIFIED": k.start_time,
    "START_TIME": k.start_time,
    "ID": k.id,
    "DESCRIPTION": k.name,
    "WORKSPACE_ID": k.workspace_id,
}

WEIGHT = weight(k.config, k.data, k.name)


def select_launched(kind: LaunchedKind) -> sa.Select[Any]:
    """The tasks of the kind, with their owners and latest allocations."""
    return (
        sa.select(
            tasks,
            users.c.username,
            sa.func.coalesce(users.c.display_name, users.c.username).label("display_name"),
            sa.func.coalesce(
                workspaces.c.agent_user_group, users.c.agent_user_group, type_=JSONB
            ).label("agent_user_group"),
            workspaces.c.name.label("workspace_name"),
            _l.id.label("allocation_id"),
            _l.state.label("allocation_state"),
            _l.agent_id,
            _l.resource_pool,
            _l.exit_code,
            _l.exit_signal,
            _PORTS_READY.label("ports_ready"),
        )
        .join(users, users.c.id == k.owner_id)
        .join(workspaces, workspaces.c.id == k.workspace_id, isouter=True)
        .join(_LAST, sa.true(), isouter=True)
        .where(k.kind == kind.name)
    )


async def get_launched(conn: AsyncConnection, kind: LaunchedKind[Any], task_id: str) -> sa.Row[Any]:
    """The row of one task. Raises NotFound, also when it is of another kind."""
    row = (await conn.execute(select_launched(kind).where(k.id == task_id))).first()
    if row is None:
        raise NotFound(f"{kind.noun} {task_id} does not exist")
    return row


def launched_json(
    row: sa.Row[Any], kind: LaunchedKind[Any], viewer: Viewer, *, alone: bool = False
) -> dict[str, Any]:
    """``v1Command``; ``alone``: its owner gets its keys, too, which no list shows.

    Ours: ``workspaceName``, ``exitCode``, ``exitSignal``, ``slots``, ``endTime``, ``taskState``,
    ``flowRunId``, ``priority``.
    """
    container = None
    if row.agent_id and row.allocation_state in (states.ASSIGNED, states.RUNNING):
        container = {
            "parent": row.agent_id,
            "id": f"{row.allocation_id}.{row.agent_id}",
            "state": "STATE_RUNNING"
            if row.allocation_state == states.RUNNING
            else "STATE_STARTING",
            "devices": [],
        }
    resources = row.config["resources"]
    return {
        "id": row.id,
        "description": row.name,
        "state": _state(row, kind),
        "startTime": moment(row.start_time),
        "endTime": moment(row.end_time),
        "container": container,
        "displayName": row.display_name,
        "userId": row.owner_id,
        "username": row.username,
        "resourcePool": resources["resource_pool"],
        "slots": resources["slots"],
        "priority": resources["priority"],
        "exitStatus": row.reason if row.state in states.TERMINAL else "",
        "exitCode": row.exit_code,
        "exitSignal": row.exit_signal,
        "taskState": f"STATE_{row.state}",
        "jobId": str(row.job_id),
        "workspaceId": row.workspace_id or FIRST,
        "workspaceName": row.workspace_name or "",
        "flowRunId": row.flow_run_id and str(row.flow_run_id),
        **kind.shown(row, owns=viewer.owns(row.owner_id)),
        **(kind.secrets(row) if alone and viewer.is_owner(row.owner_id) else {}),
    }


def planned_json(
    config: dict[str, Any], username: str, user_id: int, workspace_id: int
) -> dict[str, Any]:
    """``v1Command`` of a preview, of which Determined's client reads the required fields."""
    return {
        "id": "",
        "description": config["description"],
        "state": "STATE_UNSPECIFIED",
        "startTime": "0001-01-01T00:00:00Z",
        "userId": user_id,
        "username": username,
        "resourcePool": config["resources"]["resource_pool"],
        "jobId": "",
        "workspaceId": workspace_id,
    }


def _state(row: sa.Row[Any], kind: LaunchedKind) -> str:
    """``taskv1State``: how far it is, not how it ended."""
    if row.state in states.TERMINAL:
        return "STATE_TERMINATED"
    if row.state in states.STOPPING:
        return "STATE_TERMINATING"
    match row.allocation_state:
        case states.ASSIGNED:
            return "STATE_STARTING"
        case states.RUNNING:
            ready = kind.is_ready(cast("sa.Row[Any]", _Allocation(row)))
            return "STATE_RUNNING" if ready else "STATE_WAITING"
    return "STATE_QUEUED"


class _Allocation:
    """The allocation in a task's row, as :meth:`SlotKind.is_ready` wants it."""

    def __init__(self, row: sa.Row[Any]) -> None:
        self.id = row.allocation_id
        self.task_id = row.id
        self.state = row.allocation_state
        self.data = row.data
        self.ports_ready = row.ports_ready is not False


async def counts(conn: AsyncConnection, kinds: Sequence[LaunchedKind[Any]]) -> dict[str, int]:
    """The number of open tasks of each kind, by the plural of its noun."""
    found = await conn.execute(
        sa.select(k.kind, sa.func.count())
        .where(
            k.kind.in_([kind.name for kind in kinds]),
            k.state.not_in(list(states.TERMINAL)),
        )
        .group_by(k.kind)
    )
    number = dict(list(found.tuples()))
    return {kind.plural: number.get(kind.name, 0) for kind in kinds}
