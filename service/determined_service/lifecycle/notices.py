"""Notices that the machine under a leg goes away: its process is to store a checkpoint and exit in time."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from determined.common.wire.legs import Notice
from determined_service.access.principal import ended
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.ingest import logs
from determined_service.lifecycle import starts
from determined_service.lifecycle.legs import LONGEST_WAIT
from determined_service.state import states
from determined_service.state.change import Change, changing, reader
from determined_service.state.nodes import NODES

_LEAVES = sa.text(
    """
    UPDATE allocations SET leaving = :reason, preempt_requested_at = coalesce(preempt_requested_at, now())
    WHERE id = :id AND state IN ('ASSIGNED', 'RUNNING')
      AND (leaving IS NULL OR :knows_why AND leaving <> :reason)
    RETURNING task_id
    """
)
_ITS_LEGS = sa.text(
    f"""
    SELECT n.id, n.leg_id FROM {NODES} AS n
    WHERE n.agent_id = :agent_id AND n.state <> 'TERMINATED' AND n.leg_id = ANY(:leg_ids)
    ORDER BY n.id, n.node
    """
)


async def note(change: Change, allocation_id: str, notice: Notice) -> None:
    """Gives all processes of the allocation the preemption signal, and keeps why; repeated, nothing changes.

    Raises NotFound; Conflict when the leg has ended, or when another start of it counts.
    """
    state = await starts.require_current(change, allocation_id, notice.node, notice.start_id)
    if state == states.TERMINATED:
        raise ended(allocation_id)
    await _leave(change, allocation_id, notice, knows_why=False)


async def note_of_agent(db: Database, agent_id: str, leaving: Mapping[str, str]) -> None:
    """As :func:`note`, for those of the agent's legs that ``leaving`` names, each with the reason."""
    async with reader(db).connect() as conn:
        given = {"agent_id": agent_id, "leg_ids": list(leaving)}
        found = list(await conn.execute(_ITS_LEGS, given)) if leaving else []
    for row in found:
        async with changing(db) as change:
            await _leave(change, row.id, Notice(leaving[row.leg_id]), knows_why=True)


async def _leave(change: Change, allocation_id: str, notice: Notice, *, knows_why: bool) -> None:
    """``knows_why``: an agent's reason takes the place of a supervisor's, which has only got a signal."""
    reason = _plain(notice.reason) or "no reason given"
    given = {"id": allocation_id, "reason": reason, "knows_why": knows_why}
    found = (await change.conn.execute(_LEAVES, given)).first()
    if found is None:
        return
    when = "" if notice.seconds is None else f" in {max(0.0, min(notice.seconds, 1e6)):.0f} s"
    words = f"preempted, because its machine is going away{when}: {reason}"
    await logs.add_line(change.conn, found.task_id, allocation_id, words, "WARNING")
    change.notify(topics.allocation(allocation_id))


def _plain(words: str) -> str:
    """One line, of characters that people can read."""
    cut = " ".join(words[:LONGEST_WAIT].split())
    return "".join(char for char in cut if char.isprintable())
