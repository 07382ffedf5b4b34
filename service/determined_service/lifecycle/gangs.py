"""The containers of one allocation meet: rendezvous, and all-gather of anything.

All of it is in the tables, so a request may be repeated after its answer or the service was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import (
    agents,
    allocation_gathers,
    allocation_resources,
    allocations,
)
from determined_service.access.principal import ended
from determined_service.base import topics
from determined_service.base.errors import BadRequest, Conflict, NotFound
from determined_service.state import states
from determined_service.state.change import Change

LIMIT_S = 600.0
"""So long after the first came, the last must have."""


@dataclass(frozen=True)
class Rendezvous:
    """Addresses and slot counts of all containers in the order of ranks; ``rank``: the asker's."""

    addresses: list[str]
    slots: list[int]
    rank: int


async def _lock(conn: AsyncConnection, allocation_id: str) -> None:
    found = await conn.execute(
        sa.select(allocations.c.state)
        .where(allocations.c.id == allocation_id)
        .with_for_update(key_share=True)
    )
    _check_live(found.scalar_one_or_none(), allocation_id)


def _check_live(state: str | None, allocation_id: str) -> None:
    if state is None:
        raise NotFound(f"allocation {allocation_id} does not exist")
    if state == states.TERMINATED:
        raise ended(allocation_id)


async def post_address(change: Change, allocation_id: str, resources_id: str, address: str) -> None:
    """A container says where the others reach it; saying it again is harmless.

    Raises NotFound; Conflict when the allocation has ended.
    """
    await _lock(change.conn, allocation_id)
    table = allocation_resources
    done = await change.conn.execute(
        sa.update(table)
        .where(table.c.allocation_id == allocation_id, _is_named(resources_id))
        .values(address=address, posted_at=sa.func.coalesce(table.c.posted_at, sa.func.now()))
    )
    if done.rowcount:
        change.notify(topics.allocation(allocation_id))
    else:
        await find_rendezvous(change.conn, allocation_id, resources_id)  # raises for a stranger


def _is_named(resources_id: str) -> sa.ColumnElement[bool]:
    """One of the release before names itself by its agent."""
    table = allocation_resources.c
    return sa.or_(
        table.id == resources_id, table.allocation_id + "." + table.agent_id == resources_id
    )


async def find_rendezvous(
    conn: AsyncConnection, allocation_id: str, resources_id: str
) -> Rendezvous | None:
    """None: somebody has not come yet.

    Raises NotFound; Conflict when the allocation has ended, or who is missing did not come in time.
    """
    found = await conn.execute(
        sa.select(
            allocations.c.state, allocations.c.agent_id, allocations.c.slot_ids, agents.c.host
        )
        .select_from(allocations.outerjoin(agents, agents.c.id == allocations.c.agent_id))
        .where(allocations.c.id == allocation_id)
    )
    allocation = found.first()
    _check_live(allocation.state if allocation else None, allocation_id)
    assert allocation is not None
    rows = await _containers(conn, allocation_id)
    known = [row.id for row in rows] or [f"{allocation_id}.0"]
    # Those of the release before, by their agents.
    agents_of = {f"{allocation_id}.{row.agent_id}": row.id for row in rows}
    if not rows:
        agents_of = {f"{allocation_id}.{allocation.agent_id}": known[0]}
    if resources_id not in known:
        resources_id = agents_of.get(resources_id, resources_id)
    if resources_id not in known:
        raise NotFound(
            f"allocation {allocation_id} has no container {resources_id!r}; "
            f"it has {', '.join(known)}"
        )
    if not rows:
        return Rendezvous([allocation.host or "127.0.0.1"], [len(allocation.slot_ids)], 0)
    missing = [row for row in rows if row.address is None]
    if not missing:
        rows = sorted(rows, key=lambda row: (row.address, row.node, row.id))
        return Rendezvous(
            [row.address for row in rows],
            [len(row.slot_ids) for row in rows],
            [row.id for row in rows].index(resources_id),
        )
    if any(row.waited is not None and row.waited > LIMIT_S for row in rows):
        names = ", ".join(f"{row.id} (on {row.agent_id})" for row in missing)
        raise Conflict(
            f"the containers of allocation {allocation_id} did not meet within {LIMIT_S:.0f} s; "
            f"missing: {names}"
        )
    return None


async def _containers(conn: AsyncConnection, allocation_id: str) -> Sequence[sa.Row[Any]]:
    table = allocation_resources
    waited = sa.extract("epoch", sa.func.now() - table.c.posted_at).label("waited")
    found = await conn.execute(
        sa.select(
            table.c.id, table.c.node, table.c.agent_id, table.c.slot_ids, table.c.address, waited
        )
        .where(table.c.allocation_id == allocation_id)
        .order_by(table.c.node, table.c.id)
    )
    return found.all()


_PLACE = sa.text(
    """
    SELECT coalesce(max(round), 0) AS round,
           count(*) FILTER (WHERE round = last) AS members,
           max(num_peers) FILTER (WHERE round = last) AS num_peers,
           bool_or(request_uuid = :uuid) AS known
    FROM (SELECT *, max(round) OVER () AS last FROM allocation_gathers
          WHERE allocation_id = :id) AS found
    """
)


async def post_gather(
    change: Change, allocation_id: str, request_uuid: str, num_peers: int, data: Any
) -> None:
    """Hands in ``data`` of one of ``num_peers`` processes to the round of gathering that is open, or
    the next one; repeating it is harmless.

    Raises NotFound, BadRequest; Conflict when the allocation has ended or others expect another number.
    """
    if num_peers < 1 or not request_uuid:
        raise BadRequest("numPeers must be at least 1, and requestUuid an id of this request")
    await _lock(change.conn, allocation_id)
    found = await change.conn.execute(_PLACE, {"id": allocation_id, "uuid": request_uuid})
    place = found.one()
    if place.known:
        return
    number = place.round
    if place.members == (place.num_peers or 0):
        number += 1
        # Who opens a round has its answer of the last one, and so had everybody of the one before.
        table = allocation_gathers
        await change.conn.execute(
            sa.delete(table).where(
                table.c.allocation_id == allocation_id, table.c.round < number - 1
            )
        )
    elif place.num_peers != num_peers:
        raise Conflict(
            f"numPeers is {num_peers} here and {place.num_peers} in other requests of the same gathering"
        )
    await change.conn.execute(
        sa.insert(allocation_gathers).values(
            allocation_id=allocation_id,
            request_uuid=request_uuid,
            round=number,
            num_peers=num_peers,
            data=data,
        )
    )
    change.notify(topics.allocation(allocation_id))


_GATHERED = sa.text(
    """
    SELECT a.state, g.num_peers, g.data,
           extract(epoch FROM now() - min(g.posted_at) OVER ()) AS waited
    FROM allocations a
    LEFT JOIN allocation_gathers mine ON mine.allocation_id = a.id AND mine.request_uuid = :uuid
    LEFT JOIN allocation_gathers g ON g.allocation_id = a.id AND g.round = mine.round
    WHERE a.id = :id
    ORDER BY g.posted_at, g.request_uuid
    """
)


async def find_gathered(
    conn: AsyncConnection, allocation_id: str, request_uuid: str
) -> list[Any] | None:
    """Everybody's data, in the same order for all; None: somebody has not come yet.

    Raises NotFound; Conflict when the allocation has ended or the others did not come in time.
    """
    rows = (await conn.execute(_GATHERED, {"id": allocation_id, "uuid": request_uuid})).all()
    _check_live(rows[0].state if rows else None, allocation_id)
    if len(rows) == rows[0].num_peers:
        return [row.data for row in rows]
    if rows[0].waited is not None and rows[0].waited > LIMIT_S:
        raise Conflict(
            f"only {len(rows)} of {rows[0].num_peers} processes of allocation {allocation_id} came to "
            f"the all-gather within {LIMIT_S:.0f} s"
        )
    return None
