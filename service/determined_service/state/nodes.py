"""Where allocations run: on one agent, or as a gang of several nodes, each of which is on an agent.

A node is a number; one agent may have several of a gang, where it stands for more than a machine. The row of
an allocation has its agent, or that of a gang's first node, and the number of its nodes. Of a gang, each node
has a row of ``allocation_resources``, whose state goes ASSIGNED → RUNNING → TERMINATED. A gang is
RUNNING as soon as one of its nodes is, and ends when all have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import allocation_resources

NODES = """(
    SELECT a.id, a.id AS leg_id, 0 AS node, a.task_id, a.nodes, a.agent_id, a.slot_ids, a.state,
           a.waits_for, a.assigned_at, a.kill_requested_at,
           a.kill_requested_at IS NOT NULL AS kill
    FROM allocations a
    WHERE a.state IN ('ASSIGNED', 'RUNNING') AND a.nodes = 1
    UNION ALL
    SELECT a.id, a.id || '.n' || r.node, r.node, a.task_id, a.nodes, r.agent_id, r.slot_ids, r.state,
           r.waits_for, a.assigned_at, a.kill_requested_at,
           a.kill_requested_at IS NOT NULL OR EXISTS (
               SELECT FROM allocation_resources f
               WHERE f.allocation_id = a.id AND f.state = 'TERMINATED'
                 AND (f.exit_kind <> 'exited' OR f.exit_code <> 0 OR f.exit_signal IS NOT NULL))
    FROM allocations a JOIN allocation_resources r ON r.allocation_id = a.id
    WHERE a.state IN ('ASSIGNED', 'RUNNING') AND a.nodes > 1
)"""
"""SQL: each node of the allocations that have an agent and have not ended; nodes that have ended among them.
``leg_id``: as :func:`determined.common.wire.legs.leg_id_of` gives it. ``kill``: its process is to die,
because the allocation's is or because another node has failed."""

Place = tuple[str, Sequence[int]]
"""An agent, and the ids of its slots."""


def known_as(leg_id: str, allocation_id: str, told: Collection[str]) -> str:
    """The name of a leg in what its agent has told: one of the release before says the allocation."""
    return allocation_id if allocation_id in told and leg_id not in told else leg_id


def in_words(places: Sequence[Place]) -> str:
    """``on agent a1, slots 0, 1``; of a gang ``on agents a1 (slots 0, 1) and a2 (slots 0, 1)``."""
    if len(places) == 1:
        agent_id, slot_ids = places[0]
        return f"on agent {agent_id}{f', {_slots(slot_ids)}' if slot_ids else ''}"
    return (
        f"on {agents_in_words((f'{agent} ({_slots(ids)})' for agent, ids in places), len(places))}"
    )


def agents_in_words(agents: Iterable[str], count: int) -> str:
    """``agents a1, a2 and a3``; ``count``: how many they are."""
    names = list(agents)
    if count == 1:
        return f"agent {names[0]}"
    return f"agents {', '.join(names[:-1])} and {names[-1]}"


def _slots(slot_ids: Sequence[int]) -> str:
    return f"slot{'' if len(slot_ids) == 1 else 's'} {', '.join(map(str, slot_ids))}"


async def of_allocations(
    conn: AsyncConnection, allocation_ids: Iterable[str]
) -> dict[str, list[sa.Row[Any]]]:
    """The nodes of those allocations that are gangs, in their order."""
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
