"""The nodes of allocations: an allocation runs on one agent, or as a gang of several nodes, each on an agent.

A node is a number. An agent that stands for several machines may have several nodes of a gang. The row of an
allocation has its agent (of a gang, the first node's agent) and the number of its nodes. Each node of a gang
has a row of ``allocation_resources``, whose state goes ASSIGNED → RUNNING → TERMINATED. A gang is RUNNING as
soon as one node is, and ends when all nodes have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import allocation_resources

NODES = """(
    SELECT a.id, a.id AS leg_id, 0 AS node, a.task_id, a.nodes, a.agent_id, a.slot_ids, a.machine, a.state,
           a.waits_for, a.assigned_at, a.kill_requested_at,
           a.kill_requested_at IS NOT NULL AS kill
    FROM allocations a
    WHERE a.state IN ('ASSIGNED', 'RUNNING') AND a.nodes = 1
    UNION ALL
    SELECT a.id, a.id || '.n' || r.node, r.node, a.task_id, a.nodes, r.agent_id, r.slot_ids,
           r.machine, r.state, r.waits_for, a.assigned_at, a.kill_requested_at,
           a.kill_requested_at IS NOT NULL OR EXISTS (
               SELECT FROM allocation_resources f
               WHERE f.allocation_id = a.id AND f.state = 'TERMINATED'
                 AND (f.exit_kind <> 'exited' OR f.exit_code <> 0 OR f.exit_signal IS NOT NULL))
    FROM allocations a JOIN allocation_resources r ON r.allocation_id = a.id
    WHERE a.state IN ('ASSIGNED', 'RUNNING') AND a.nodes > 1
)"""
"""SQL: all nodes of the assigned and running allocations, including nodes that have ended. ``leg_id`` equals
:func:`determined.common.wire.legs.leg_id_of`. ``kill``: the node's process must be killed, because the
allocation is killed or another node has failed."""

AgentSlots = tuple[str, Sequence[int]]
"""An agent and the ids of its assigned slots."""


def known_as(leg_id: str, allocation_id: str, told: Collection[str]) -> str:
    """Return the leg's name in the agent's report: an agent of the previous release reports the allocation's
    id instead."""
    return allocation_id if allocation_id in told and leg_id not in told else leg_id


def in_words(places: Sequence[AgentSlots]) -> str:
    """``on agent a1, slots 0, 1``; of a gang ``on agents a1 (slots 0, 1) and a2 (slots 0, 1)``."""
    if len(places) == 1:
        agent_id, slot_ids = places[0]
        return f"on agent {agent_id}{f', {_slots(slot_ids)}' if slot_ids else ''}"
    return (
        f"on {agents_in_words((f'{agent} ({_slots(ids)})' for agent, ids in places), len(places))}"
    )


def agents_in_words(agents: Iterable[str], count: int) -> str:
    """Return ``agents a1, a2 and a3``; ``count`` is their number."""
    names = list(agents)
    if count == 1:
        return f"agent {names[0]}"
    return f"agents {', '.join(names[:-1])} and {names[-1]}"


def _slots(slot_ids: Sequence[int]) -> str:
    return f"slot{'' if len(slot_ids) == 1 else 's'} {', '.join(map(str, slot_ids))}"


async def of_allocations(
    conn: AsyncConnection, allocation_ids: Iterable[str]
) -> dict[str, list[sa.Row[Any]]]:
    """Return the nodes, in order, of each of the allocations that is a gang."""
    table = allocation_resources
    found = await conn.execute(
        sa.select(table)
        .where(table.c.allocation_id.in_(list(allocation_ids)))
        .order_by(table.c.allocation_id, table.c.node, table.c.id)
    )
    nodes: dict[str, list[sa.Row[Any]]] = {}
    for row in found:
        nodes.setdefault(row.allocation_id, []).append(row)
    return nodes
