"""Ports of tasks that the proxy reaches: rows of the live allocations, made, changed and gone with these."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from determined.common.wire.legs import Port, PortState
from determined_registry.database.tables import allocation_ports, allocations
from determined_service.base import topics
from determined_service.base.errors import Conflict
from determined_service.state import states
from determined_service.state.change import Change

NOT_YET = "nothing listens at port {port} yet"


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
