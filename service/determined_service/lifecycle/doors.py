"""Doors into running tasks: a user requests a door, and the node's supervisor opens it.

A row of ``allocation_doors`` holds the request and its state. The open door's address is a port of the task
(``allocation_ports``), so the proxy connects to it. Both rows are deleted when the allocation ends.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire import doors, gate, shells
from determined.common.wire.doors import DoorOrder, DoorState
from determined.common.wire.times import HEARTBEAT_S
from determined_registry.database.tables import allocation_doors, allocation_ports, allocations
from determined_service.base import topics
from determined_service.base.errors import Conflict, NotFound
from determined_service.state import states
from determined_service.state.change import Change

_NODE = sa.text(
    """
    SELECT a.id, a.nodes, a.state, coalesce(r.agent_id, a.agent_id) AS agent_id,
           coalesce(r.state, a.state) AS node_state, g.id IS NOT NULL AS has_agent,
           extract(epoch FROM now() - g.last_heartbeat)::float8 AS silent_s
    FROM allocations a
    LEFT JOIN allocation_resources r
        ON a.nodes > 1 AND r.allocation_id = a.id AND r.node = :node
    LEFT JOIN agents g ON g.id = coalesce(r.agent_id, a.agent_id)
    WHERE a.task_id = :task_id AND a.state <> 'TERMINATED'
    ORDER BY a.requested_at DESC LIMIT 1
    """
)
_c = allocation_doors.c
SILENT_S = 4 * HEARTBEAT_S
"""Seconds of silence after which an agent counts as away."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested door. ``nodes`` is the number of nodes on which the task runs."""

    allocation_id: str
    node: int
    agent_id: str
    nodes: int


async def ask(change: Change, task_id: str, node: int, again: bool) -> Asked:
    """Order the node's supervisor to open its door, unless the door is open. ``again``: even if it is
    recorded as open.

    Raises Conflict for a task that does not run now, or whose agent cannot be reached; NotFound for an
    unknown node.
    """
    live = sa.select(allocations.c.id).where(
        allocations.c.task_id == task_id, allocations.c.state != states.TERMINATED
    )
    # The shared lock makes the end of the allocation wait, so that it also deletes this door.
    await change.conn.execute(live.with_for_update(read=True))
    found = (await change.conn.execute(_NODE, {"task_id": task_id, "node": node})).first()
    if found is None or found.node_state != states.RUNNING:
        raise Conflict(f"task {task_id} {_why_not(found)}: there is nothing to enter")
    if node >= found.nodes:
        raise NotFound(f"task {task_id} has no node {node}: it runs on {_count(found.nodes)}")
    if not found.has_agent:
        raise Conflict(
            f"task {task_id} runs under a worker of Prefect's own ({found.agent_id}), which opens no doors:"
            " run it on an agent (det agent start)"
        )
    if found.silent_s > SILENT_S:
        raise Conflict(
            f"agent {found.agent_id}, where task {task_id} runs, has been silent for {found.silent_s:.0f} s:"
            " try again when it is back (det agent list)"
        )
    given = insert(allocation_doors).values(
        allocation_id=found.id,
        node=node,
        agent_id=found.agent_id,
        secret=secrets.token_urlsafe(32),
    )
    await change.conn.execute(
        given.on_conflict_do_update(
            index_elements=[_c.allocation_id, _c.node],
            set_={
                "requested_at": sa.func.now(),
                "agent_id": given.excluded.agent_id,
                "is_open": _c.is_open & sa.literal(not again),
                "problem": "",
            },
        )
    )
    change.notify(topics.agent(found.agent_id))
    return Asked(found.id, node, found.agent_id, found.nodes)


def _why_not(found: sa.Row[Any] | None) -> str:
    if found is None or found.state == states.TERMINATED:
        return "does not run now"
    if found.state == states.REQUESTED:
        return "waits for its slots"
    if found.node_state == states.TERMINATED:
        return "has ended on this node"
    return f"is being prepared by agent {found.agent_id}"


def _count(nodes: int) -> str:
    return "one machine, node 0" if nodes == 1 else f"{nodes} machines, nodes 0 to {nodes - 1}"


async def open_secret(conn: AsyncConnection, asked: Asked) -> str | None:
    """Return the secret for the open door, or None while it is not open. Raises Conflict if it will never
    open."""
    row = (
        await conn.execute(
            sa.select(_c.secret, _c.is_open, _c.problem).where(
                _c.allocation_id == asked.allocation_id, _c.node == asked.node
            )
        )
    ).first()
    if row is None:
        raise Conflict("the task has ended meanwhile")
    if row.problem:
        raise Conflict(f"agent {asked.agent_id} cannot open the task: {row.problem}")
    return str(row.secret) if row.is_open else None


async def way_to(conn: AsyncConnection, allocation_id: str, name: str) -> sa.Row[Any]:
    """Where an open door is: ``address``, ``port``, ``behind``. Raises Conflict when it has been closed."""
    p = allocation_ports.c
    found = await conn.execute(
        sa.select(p.address, p.port, p.behind).where(
            p.allocation_id == allocation_id, p.name == name
        )
    )
    row = found.first()
    if row is None:
        raise Conflict("the way into the task has just been closed: try again")
    return row


async def order(
    conn: AsyncConnection, allocation_id: str, node: int, agent_token: str
) -> DoorOrder:
    """Return the supervisor's order: whether this door is requested, with the hash of its secret and the
    gate's key."""
    secret = (
        await conn.execute(
            sa.select(_c.secret).where(_c.allocation_id == allocation_id, _c.node == node)
        )
    ).scalar_one_or_none()
    if secret is None:
        return DoorOrder(False)
    key = gate.key(agent_token, allocation_id, doors.port_name(node))
    return DoorOrder(True, shells.hash_of(secret), key.hex())


async def set_state(change: Change, allocation_id: str, state: DoorState) -> None:
    """Record that a supervisor has opened its door, or wants to close it. Raises Conflict if this door is not
    requested (any more), or if it was requested again and must stay open."""
    conn = change.conn
    # Lock the allocation first, in a separate statement: the transaction that ends it deletes its doors and
    # ports, and must see the port that is inserted here.
    held = (
        await conn.execute(
            sa.select(allocations.c.task_id, allocations.c.state)
            .where(allocations.c.id == allocation_id)
            .with_for_update(read=True)
        )
    ).first()
    this = (_c.allocation_id == allocation_id, _c.node == state.node)
    row = (
        await conn.execute(
            sa.select(_c.secret, _c.is_open).where(*this).with_for_update(key_share=True)
        )
    ).first()
    is_it = row is not None and shells.hash_of(row.secret) == state.secret_hash
    if held is None or held.state != states.RUNNING or row is None or not is_it:
        raise Conflict(f"nobody asks for door {state.node} of allocation {allocation_id}")
    name = doors.port_name(state.node)
    p = allocation_ports.c
    change.notify(topics.task(held.task_id))
    if state.open:
        port = insert(allocation_ports).values(
            allocation_id=allocation_id,
            name=name,
            task_id=held.task_id,
            address=state.address,
            port=state.port,
            tcp=True,
            unauthenticated=False,
            shared=False,
            is_default=False,
            keep_prefix=False,
            ready=True,
            behind=state.behind,
        )
        await conn.execute(
            port.on_conflict_do_update(
                index_elements=[p.allocation_id, p.name],
                set_={"address": state.address, "port": state.port, "behind": state.behind},
            )
        )
        await conn.execute(sa.update(allocation_doors).where(*this).values(is_open=True))
        return
    if not state.problem and not row.is_open:
        raise Conflict(f"door {state.node} of allocation {allocation_id} was asked for again")
    await conn.execute(
        sa.delete(allocation_ports).where(p.allocation_id == allocation_id, p.name == name)
    )
    if state.problem:
        await conn.execute(
            sa.update(allocation_doors)
            .where(*this)
            .values(problem=state.problem[:1000], is_open=False)
        )
    else:
        await conn.execute(sa.delete(allocation_doors).where(*this))
