"""Agents and slots taken out of use, put back, and removed: what an administrator says."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
import sqlalchemy as sa

from determined_registry.database.tables import agents, slots
from determined_service.base import topics, units
from determined_service.base.db import Database
from determined_service.base.errors import Conflict, NotFound
from determined_service.lifecycle.exits import ExitKind, LegExit
from determined_service.lifecycle.legs import end_leg
from determined_service.state import presence
from determined_service.state.change import changing, reader
from determined_service.state.nodes import NODES


async def use_agent(db: Database, agent_id: str, *, enabled: bool, drain: bool = False) -> None:
    """Enables or disables the agent, which keeps this when it registers again.

    What runs on a disabled agent ends, uncounted, and starts again elsewhere; with ``drain`` it may finish.
    Raises NotFound.
    """
    async with changing(db) as change:
        done = await change.conn.execute(
            sa.update(agents)
            .where(agents.c.id == agent_id)
            .values(enabled=enabled, draining=drain and not enabled)
        )
        if not done.rowcount:
            raise NotFound(f"agent {agent_id!r} does not exist")
        change.notify(topics.SCHEDULER)
    if not enabled and not drain:
        await _end(db, agent_id, f"agent {agent_id} was disabled")


async def use_slot(
    db: Database, agent_id: str, slot_id: int, *, enabled: bool, drain: bool = False
) -> None:
    """As :func:`use_agent`, for one slot."""
    async with changing(db) as change:
        done = await change.conn.execute(
            sa.update(slots)
            .where(slots.c.agent_id == agent_id, slots.c.slot_id == slot_id)
            .values(enabled=enabled)
        )
        if not done.rowcount:
            raise NotFound(f"agent {agent_id!r} has no slot {slot_id}")
        change.notify(topics.SCHEDULER)
    if not enabled and not drain:
        await _end(
            db, agent_id, f"slot {slot_id} of agent {agent_id} was disabled", slot_id=slot_id
        )


_DISABLE = sa.text(
    """
    INSERT INTO disabled_machines (agent_id, machine, draining)
    SELECT DISTINCT agent_id, machine, :drain FROM slots WHERE agent_id = :agent_id AND machine = :machine
    ON CONFLICT (agent_id, machine) DO UPDATE SET draining = excluded.draining
    RETURNING agent_id
    """
)
_ENABLE = sa.text(
    """
    WITH gone AS (
        DELETE FROM disabled_machines WHERE agent_id = :agent_id AND machine = :machine RETURNING agent_id
    )
    SELECT agent_id FROM gone
    UNION SELECT agent_id FROM slots WHERE agent_id = :agent_id AND machine = :machine
    """
)


async def use_machine(
    db: Database, agent_id: str, machine: str, *, enabled: bool, drain: bool = False
) -> None:
    """As :func:`use_agent`, for one machine of an agent that stands for several. A leg counts to the
    machine on which it runs, and before that is known to the machine of its slots.

    Holds for our scheduler alone: what others do with the machine is not changed.
    """
    given = {"agent_id": agent_id, "machine": machine}
    async with changing(db) as change:
        statement = _ENABLE if enabled else _DISABLE.bindparams(drain=drain)
        if (await change.conn.execute(statement, given)).first() is None:
            raise NotFound(f"agent {agent_id!r} has no machine {machine!r}")
        change.notify(topics.SCHEDULER)
    if not enabled and not drain:
        await _end(db, agent_id, f"machine {agent_id}/{machine} was disabled", machine=machine)


async def remove_agent(db: Database, agent_id: str, agent_timeout_s: float) -> None:
    """Removes an agent that is gone. What it ran ends, uncounted, and starts again elsewhere.

    ``agent_timeout_s``: how long an agent may be silent. Raises NotFound, and Conflict for one that is alive.
    """
    async with changing(db) as change:
        given = {"id": agent_id, "timeout": agent_timeout_s}
        row = (await change.conn.execute(_IS_HERE, given)).first()
        if row is None:
            raise NotFound(f"agent {agent_id!r} does not exist")
        if row.is_here:
            raise _alive(agent_id)
        await change.conn.execute(
            sa.update(agents).where(agents.c.id == agent_id).values(away=presence.ENDED)
        )
    await _end(db, agent_id, f"agent {agent_id} was removed")
    async with changing(db) as change:
        done = await change.conn.execute(
            sa.delete(agents).where(agents.c.id == agent_id, agents.c.away == presence.ENDED)
        )
        if not done.rowcount:  # It has registered meanwhile.
            raise _alive(agent_id)


def _alive(agent_id: str) -> Conflict:
    return Conflict(
        f"agent {agent_id!r} is alive: end its process first (Ctrl-C or SIGTERM), or disable it"
        f" (det agent disable {agent_id})"
    )


_IS_HERE = sa.text(
    f"SELECT {presence.takes_work()} AS is_here FROM agents g WHERE g.id = :id FOR UPDATE"
)


async def _end(
    db: Database,
    agent_id: str,
    reason: str,
    *,
    slot_id: int | None = None,
    machine: str | None = None,
) -> None:
    given = {"agent_id": agent_id, "slot_id": slot_id, "machine": machine}
    async with db.tx() as conn:
        found = await conn.execute(_HOLDERS, given)
        held = list(found)
    for row in held:
        async with changing(db) as change:
            end = LegExit(ExitKind.INFRASTRUCTURE, reason=reason)
            await end_leg(change, row.id, end, node=row.node)


async def note_machines(db: Database, agent_id: str, told: Mapping[str, str]) -> None:
    """Stores on which machines the agent's legs run, by their names.

    A leg that its agent's cluster has placed on a machine which was disabled meanwhile ends, as it would have
    if this had been known. Raises BadRequest for a machine's name that is none.
    """
    units.require_machines("machines", told.values())
    async with reader(db).connect() as conn:
        given = {"agent_id": agent_id, "told": orjson.dumps(dict(told)).decode()}
        found = list(await conn.execute(_ELSEWHERE, given)) if told else []
    for row in found:
        async with changing(db) as change:
            statement = _ALONE if row.nodes == 1 else _NODE
            values = {"id": row.id, "node": row.node, "agent_id": agent_id, "machine": row.machine}
            await change.conn.execute(statement, values)
    for machine in sorted({row.machine for row in found}):
        async with reader(db).connect() as conn:
            given = {"agent_id": agent_id, "machine": machine}
            is_closed = (await conn.execute(_IS_CLOSED, given)).first() is not None
        if is_closed:
            await _end(db, agent_id, f"machine {agent_id}/{machine} was disabled", machine=machine)


_ELSEWHERE = sa.text(
    f"""
    SELECT n.id, n.node, n.nodes, t.value AS machine
    FROM {NODES} AS n JOIN jsonb_each_text(cast(:told AS jsonb)) AS t ON t.key = n.leg_id
    WHERE n.agent_id = :agent_id AND n.state <> 'TERMINATED' AND n.machine IS DISTINCT FROM t.value
    ORDER BY n.id, n.node
    """
)
_ALONE = sa.text(
    """
    UPDATE allocations SET machine = :machine
    WHERE id = :id AND agent_id = :agent_id AND nodes = 1 AND state IN ('ASSIGNED', 'RUNNING')
    """
)
_NODE = sa.text(
    """
    UPDATE allocation_resources SET machine = :machine
    WHERE allocation_id = :id AND node = :node AND agent_id = :agent_id AND state <> 'TERMINATED'
    """
)
_IS_CLOSED = sa.text(
    """
    SELECT FROM disabled_machines WHERE agent_id = :agent_id AND machine = :machine AND NOT draining
    """
)
_HOLDERS = sa.text(
    f"""
    SELECT n.id, n.node FROM {NODES} AS n
    WHERE n.agent_id = :agent_id AND n.state <> 'TERMINATED'
      AND (cast(:slot_id AS int) IS NULL OR n.slot_ids @> to_jsonb(cast(:slot_id AS int)))
      AND (cast(:machine AS text) IS NULL OR n.machine = :machine OR n.machine IS NULL AND EXISTS (
          SELECT FROM slots s WHERE s.agent_id = n.agent_id AND s.machine = :machine
            AND n.slot_ids @> to_jsonb(s.slot_id)))
    ORDER BY n.id, n.node
    """
)
