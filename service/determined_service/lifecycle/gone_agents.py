"""Agents that are gone: those that sign off, those that count as lost, those that are forgotten."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping

import sqlalchemy as sa

from determined_registry.database.tables import agents
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.lifecycle.exits import ExitKind, LegExit
from determined_service.lifecycle.legs import end_leg
from determined_service.state import presence
from determined_service.state.change import changing, reader
from determined_service.state.nodes import NODES


async def sign_off(db: Database, agent_id: str, session: uuid.UUID) -> None:
    """The agent ends: it gets no more work until it registers again. What it has not begun goes back into the
    queue at once; it reports the ends of what it runs. Another session's sign-off is ignored."""
    async with changing(db) as change:
        await change.conn.execute(
            sa.update(agents)
            .where(agents.c.id == agent_id, agents.c.session == session)
            .values(away=presence.ENDED, last_heartbeat=sa.func.now())
        )
        change.notify(topics.SCHEDULER, topics.RECONCILER)


_LOST = sa.text(
    f"""
    SELECT n.id, n.node, g.id AS agent_id, extract(epoch FROM now() - g.last_heartbeat)::float8 AS silent_s
    FROM {NODES} AS n JOIN agents g ON g.id = n.agent_id
    WHERE n.state <> 'TERMINATED' AND NOT {presence.is_kept()}
    ORDER BY n.id, n.node
    """
)


async def end_lost(
    db: Database, agent_timeout_s: float, waits: Mapping[str, float] | None = None
) -> list[str]:
    """Ends what ran on agents without a sign of life; returns those allocations. ``waits``: seconds by pool,
    where it has them wait longer."""
    given = {"timeout": agent_timeout_s, "waits": json.dumps(waits or {})}
    async with reader(db).connect() as conn:
        lost = list(await conn.execute(_LOST, given))
    for row in lost:
        async with changing(db) as change:
            reason = f"agent {row.agent_id} lost for {row.silent_s:.0f} s"
            end = LegExit(ExitKind.INFRASTRUCTURE, reason=reason)
            await end_leg(change, row.id, end, node=row.node)
    return [row.id for row in lost]


_FORGET = sa.text(
    f"""
    DELETE FROM agents g
    WHERE g.last_heartbeat < now() - make_interval(secs => :after) AND g.enabled AND NOT g.draining
      AND NOT EXISTS (SELECT FROM slots s WHERE s.agent_id = g.id AND NOT s.enabled)
      AND NOT EXISTS (SELECT FROM disabled_machines m WHERE m.agent_id = g.id)
      AND NOT EXISTS (SELECT FROM {NODES} AS n WHERE n.agent_id = g.id AND n.state <> 'TERMINATED')
    RETURNING g.id
    """
)


async def forget(db: Database, after_s: float) -> list[str]:
    """Removes agents that were not heard of for ``after_s`` seconds and run nothing; returns their names.

    Those that an administrator has disabled, or slots or machines of them, stay: they would come back
    enabled.
    """
    async with reader(db).connect() as conn:
        return sorted((await conn.execute(_FORGET, {"after": after_s})).scalars())
