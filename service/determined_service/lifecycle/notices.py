"""Notices that the machine under a leg goes away: its process is to store a checkpoint and exit in time."""

from __future__ import annotations

import sqlalchemy as sa

from determined.common.wire.legs import Notice
from determined_service.access.principal import ended
from determined_service.base import topics
from determined_service.ingest import logs
from determined_service.lifecycle import starts
from determined_service.lifecycle.legs import LONGEST_WAIT
from determined_service.state import states
from determined_service.state.change import Change

# The first reason counts: the processes of a gang are told once.
_LEAVES = sa.text(
    """
    UPDATE allocations SET leaving = :reason, preempt_requested_at = coalesce(preempt_requested_at, now())
    WHERE id = :id AND state IN ('ASSIGNED', 'RUNNING') AND leaving IS NULL
    RETURNING task_id
    """
)


async def note(change: Change, allocation_id: str, notice: Notice) -> None:
    """Gives all processes of the allocation the preemption signal, and keeps why; repeated, nothing changes.

    Raises NotFound; Conflict when the leg has ended, or when another start of it counts.
    """
    state = await starts.require_current(change, allocation_id, notice.node, notice.start_id)
    if state == states.TERMINATED:
        raise ended(allocation_id)
    reason = _plain(notice.reason) or "no reason given"
    given = {"id": allocation_id, "reason": reason}
    found = (await change.conn.execute(_LEAVES, given)).first()
    if found is None:
        return
    seconds = max(0.0, min(notice.seconds, 1e6))
    words = f"preempted, because its machine is going away in {seconds:.0f} s: {reason}"
    await logs.add_line(change.conn, found.task_id, allocation_id, words, "WARNING")
    change.notify(topics.allocation(allocation_id))


def _plain(words: str) -> str:
    """One line, of characters that people can read."""
    cut = " ".join(words[:LONGEST_WAIT].split())
    return "".join(char for char in cut if char.isprintable())
