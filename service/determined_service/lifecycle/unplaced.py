"""Legs that their agent's cluster had no room for: they wait in the queue again, after a rest.

The scheduler gives a leg its slots, and a cluster such as Kubernetes may still find no machine for it: others
use the cluster, too, or the leg asks for something that no machine has. Such a leg keeps its place in line.
Each time in a row it rests longer, so that it neither spins nor holds slots that others could use.
"""

from __future__ import annotations

import sqlalchemy as sa

from determined_service.ingest import logs
from determined_service.lifecycle.exits import NO_WORDS
from determined_service.state import prefect_states
from determined_service.state.change import Change

RESTS_S = (10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
"""Seconds until a leg may be placed again, by the number of times in a row that its agent's cluster did not
place it; the last one is for all larger numbers."""
LONGEST_WORDS = 1000

_REST = sa.text(
    f"""
    UPDATE allocations n
    SET in_line_since = coalesce(p.in_line_since, p.requested_at), unplaced_times = p.unplaced_times + 1,
        waits_for = left(:words, {LONGEST_WORDS}),
        rests_until = now() + make_interval(secs =>
            (cast(:rests AS float8[]))[least(p.unplaced_times + 1, {len(RESTS_S)})])
    FROM allocations p
    WHERE p.id = :ended AND n.task_id = p.task_id AND n.state = 'REQUESTED'
    RETURNING extract(epoch FROM n.rests_until - now())::float8 AS seconds
    """
)


async def rest(change: Change, task_id: str, allocation_id: str, reason: str | None) -> None:
    """Has the task's new request rest. ``allocation_id``: the leg that there was no room for, for ``reason``
    in the words of the cluster."""
    words = " ".join((reason or NO_WORDS).split())
    given = {"ended": allocation_id, "words": words, "rests": list(RESTS_S)}
    seconds = (await change.conn.execute(_REST, given)).scalar_one()
    said = (
        f"its agent's cluster did not place it: {words}; it waits in the queue and is tried again in"
        f" {seconds:.0f} s"
    )
    await logs.add_line(change.conn, task_id, allocation_id, said, "WARNING")
    prefect_states.awaiting_slots(change, task_id, said, f"no room: {words}")
