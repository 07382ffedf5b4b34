"""Notices that the machine under a leg goes away: its process is to store a checkpoint and exit in time."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from determined.common.wire.legs import Notice, going_away, of_leg_id
from determined_service.access.principal import ended
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.ingest import logs
from determined_service.lifecycle import starts
from determined_service.lifecycle.legs import LONGEST_WAIT
from determined_service.state import prefect_states, states
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
_LEFT = sa.text(
    """
    WITH told AS (
        SELECT id, leaving AS before FROM allocations
        WHERE id = :id AND state = 'TERMINATED' AND leaving <> :reason AND strpos(reason, leaving) > 0
        FOR NO KEY UPDATE
    ), said AS (
        UPDATE allocations a SET leaving = :reason, reason = replace(a.reason, t.before, :reason)
        FROM told t WHERE a.id = t.id
        RETURNING a.id, a.task_id, t.before
    ), shown AS (
        UPDATE legs l SET reason = replace(l.reason, s.before, :reason) FROM said s
        WHERE l.allocation_id = s.id
    )
    SELECT task_id FROM said
    """
)
"""Of a leg that has ended because of it already."""
_ITS_LEGS = sa.text(
    f"""
    SELECT n.id, n.leg_id FROM {NODES} AS n
    WHERE n.agent_id = :agent_id AND n.state <> 'TERMINATED' AND n.leg_id = ANY(:leg_ids)
    UNION ALL
    SELECT a.id, a.id || coalesce('.n' || r.node, '') AS leg_id
    FROM allocations a LEFT JOIN allocation_resources r ON r.allocation_id = a.id AND a.nodes > 1
    WHERE a.id = ANY(:ids) AND a.state = 'TERMINATED' AND coalesce(r.agent_id, a.agent_id) = :agent_id
      AND a.id || coalesce('.n' || r.node, '') = ANY(:leg_ids)
    ORDER BY leg_id
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
    """As :func:`note`, for those of the agent's legs that ``leaving`` names, each with the reason. A leg that
    has ended meanwhile, of which its supervisor has told less, gets the agent's words for its end."""
    async with reader(db).connect() as conn:
        ids = [of_leg_id(leg_id)[0] for leg_id in leaving]
        given = {"agent_id": agent_id, "leg_ids": list(leaving), "ids": ids}
        found = list(await conn.execute(_ITS_LEGS, given)) if leaving else []
    for row in found:
        async with changing(db) as change:
            await _leave(change, row.id, Notice(leaving[row.leg_id]), knows_why=True)


async def _leave(change: Change, allocation_id: str, notice: Notice, *, knows_why: bool) -> None:
    """``knows_why``: an agent's reason takes the place of a supervisor's, which has only got a signal."""
    reason = _plain(notice.reason) or "no reason given"
    given = {"id": allocation_id, "reason": reason, "knows_why": knows_why}
    found = (await change.conn.execute(_LEAVES, given)).first()
    if found is None and knows_why:
        del given["knows_why"]
        found = (await change.conn.execute(_LEFT, given)).first()
        if found is not None:
            prefect_states.show_reason(change, found.task_id, going_away(reason), "")
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
