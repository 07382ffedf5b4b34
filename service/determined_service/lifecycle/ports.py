"""Ports of tasks that the proxy reaches: rows of the live allocations, made, changed and gone with these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.doors import DoorState
from determined.common.wire.legs import FREE_PORTS, Port, PortState
from determined_registry.database.tables import allocation_ports, allocations
from determined_service.base import topics
from determined_service.base.errors import BadRequest, Conflict
from determined_service.base.settings import Settings
from determined_service.lifecycle.leg_orders import leg_specs
from determined_service.state import states
from determined_service.state.change import Change

_HOLDER = sa.text(
    """
    SELECT a.agent_id, k.kind, g.address
    FROM allocations a JOIN tasks k ON k.id = a.task_id LEFT JOIN agents g ON g.id = a.agent_id
    WHERE a.id = :id
    """
)
_DOOR_HOLDER = sa.text(
    """
    SELECT d.agent_id, g.address
    FROM allocation_doors d LEFT JOIN agents g ON g.id = d.agent_id
    WHERE d.allocation_id = :id AND d.node = :node
    """
)
# The service's own names of ports are no numbers; a port that a user names may be another's, which its
# supervisor notices.
_TAKEN = sa.text(
    """
    SELECT p.allocation_id FROM allocation_ports p
    WHERE p.allocation_id <> :id AND p.address = :address AND p.port = :port AND p.name !~ '^[0-9]+$' LIMIT 1
    """
)

NOT_YET = "nothing listens at port {port} yet"


async def require_given(
    conn: AsyncConnection,
    allocation_id: str,
    reported: Sequence[Port],
    way: tuple[str, str],
    settings: Settings,
) -> list[Port]:
    """The reported ports with what the order says about them, if they are those of the order, on the agent
    that holds the allocation.

    ``way``: the reported address, and where the supervisor is reached. A supervisor may lie: the proxy must
    not be led elsewhere. Raises BadRequest; Conflict for a port that another allocation holds.
    """
    holder = (await conn.execute(_HOLDER, {"id": allocation_id})).one()
    kinds = {allocation_id: holder.kind}
    _require_holder(allocation_id, holder, way)
    orders = await leg_specs(conn, kinds, settings, holder.agent_id)
    given, found = {port.name: port for order in orders for port in order.ports}, []
    for port in reported:
        wanted = given.get(port.name)
        own = port.behind or port.port
        is_it = wanted is not None and (own == wanted.port if wanted.port else own in FREE_PORTS)
        if wanted is None or not is_it or not _can_listen(port.port, port.behind):
            raise BadRequest(
                f"ports: {port.name!r} at {own} is not a port that allocation {allocation_id} was given"
            )
        await _require_free(conn, allocation_id, way[0], port.port)
        found.append(replace(wanted, port=port.port, behind=port.behind))
    return found


async def require_door(
    conn: AsyncConnection, allocation_id: str, door: DoorState, way: tuple[str, str]
) -> None:
    """As :func:`require_given`, for a door that was asked for."""
    asked = (await conn.execute(_DOOR_HOLDER, {"id": allocation_id, "node": door.node})).first()
    if asked is None:
        return  # nobody asks for it, which is found out under the lock
    _require_holder(allocation_id, asked, way)
    own = door.behind or door.port
    if own not in FREE_PORTS or not _can_listen(door.port, door.behind):
        raise BadRequest(f"door {door.node} of allocation {allocation_id} cannot be at port {own}")
    await _require_free(conn, allocation_id, door.address, door.port)


def _require_holder(allocation_id: str, holder: sa.Row[Any], way: tuple[str, str]) -> None:
    address, source = way
    # A stock worker is no agent. An agent of the release before has not said its address.
    right = source if holder.address is None else holder.address
    if address != right and right:
        raise BadRequest(
            f"address: the ports of allocation {allocation_id} are reached at {right}, where agent"
            f" {holder.agent_id} is, not at {address!r}; if its machine has another address now, start the"
            " agent again"
        )


def _can_listen(port: int, behind: int) -> bool:
    """A gate is at any port that is nobody's by custom: who answers there must know its key."""
    return not behind or 1024 <= port < 65_536


async def _require_free(conn: AsyncConnection, allocation_id: str, address: str, port: int) -> None:
    given = {"id": allocation_id, "address": address, "port": port}
    if (await conn.execute(_TAKEN, given)).first() is not None:
        raise Conflict(f"port {port} of {address} is another allocation's")


async def register(change: Change, allocation_id: str, address: str, ports: Sequence[Port]) -> None:
    """The process of an allocation that runs has ``ports`` at ``address``; said again, it
    may be at another number."""
    task_id = (
        await change.conn.execute(
            sa.select(allocations.c.task_id).where(allocations.c.id == allocation_id)
        )
    ).scalar_one()
    rows = [
        {
            "allocation_id": allocation_id,
            "task_id": task_id,
            "name": port.name,
            "address": address,
            "port": port.port,
            "tcp": port.tcp,
            "unauthenticated": port.unauthenticated,
            "shared": port.shared,
            "is_default": port.default,
            "keep_prefix": port.keep_prefix,
            "behind": port.behind,
            "waits_for": NOT_YET.format(port=port.behind or port.port),
        }
        for port in ports
    ]
    statement = insert(allocation_ports).values(rows)
    # A supervisor that takes over has other gates.
    moved = {name: statement.excluded[name] for name in ("address", "port", "behind")}
    await change.conn.execute(
        statement.on_conflict_do_update(index_elements=["allocation_id", "name"], set_=moved)
    )
    change.notify(topics.task(task_id))


async def set_state(change: Change, allocation_id: str, state: PortState) -> None:
    """The port can be reached (any more), or not. Raises Conflict for an allocation that does not run, or has
    no such port."""
    p, a = allocation_ports.c, allocations.c
    found = await change.conn.execute(
        sa.update(allocation_ports)
        .values(ready=state.ready, waits_for=state.waits_for)
        .where(
            p.allocation_id == allocation_id,
            p.name == state.name,
            a.id == p.allocation_id,
            a.state == states.RUNNING,
        )
        .returning(p.task_id)
    )
    task_id = found.scalar_one_or_none()
    if task_id is None:
        raise Conflict(f"allocation {allocation_id} has no port {state.name!r}, or does not run")
    change.notify(topics.allocation(allocation_id), topics.task(task_id))
