"""A trial's requests for slots: when it wants some, and its next leg's place in the queue."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import allocations
from determined_searchers.settings import Form, read_form
from determined_service.base import topics
from determined_service.lifecycle.allocations import lock_live
from determined_service.lifecycle.exits import LOST_IN_A_ROW, Outcome
from determined_service.state import states
from determined_service.state.change import Change

# The leg number grows in the same statement, so two requests can never share an id.
_REQUEST = sa.text(
    """
    WITH numbered AS (
        UPDATE trials SET run_count = run_count + 1
        WHERE id = ANY(:ids)
        RETURNING id, experiment_id, task_id, run_count
    )
    INSERT INTO allocations
        (id, task_id, experiment_id, trial_id, run_id, state, resource_pool, slots, priority,
         in_line_since)
    SELECT n.task_id || '.' || n.run_count, n.task_id, n.experiment_id, n.id, n.run_count,
           :state, e.resource_pool,
           coalesce((e.config #>> '{resources,slots_per_trial}')::int, 1),
           (e.config #>> '{resources,priority}')::int,
           CASE WHEN :keep_place THEN (
               SELECT coalesce(a.in_line_since, a.requested_at) FROM allocations a
               WHERE a.id = n.task_id || '.' || (n.run_count - 1)
           ) END
    FROM numbered n JOIN experiments e ON e.id = n.experiment_id
    ORDER BY n.id
    RETURNING task_id
    """
)


_LAST_LEGS = sa.text(
    """
    SELECT state, coalesce(extract(epoch FROM now() - end_time), 0)::float8 AS ended_s
    FROM legs WHERE task_id = :task_id AND state <> 'UNPLACED' ORDER BY run_id DESC LIMIT :most
    """
)


def is_reports_form(searcher: Mapping[str, Any]) -> bool:
    """True if trials under this ``searcher`` section decide themselves how long they train."""
    return read_form(searcher) is Form.REPORTS


def wants_slots(reports: bool, op_complete: bool, closed: bool) -> bool:
    """True if a trial that has not ended and holds no slots should queue for some.

    One that has done all it ever will (``closed``) does so only if its last process did not exit
    cleanly: it gets another chance to.
    """
    return reports or not op_complete or closed


async def request(change: Change, trial_ids: Sequence[int], *, keep_place: bool = False) -> None:
    """Puts the (locked) trials into the queue for slots, as their next leg.

    ``keep_place``: in the place in line that each one's last request had.
    """
    if trial_ids:
        given = {"ids": list(trial_ids), "state": states.REQUESTED, "keep_place": keep_place}
        tasks = (await change.conn.execute(_REQUEST, given)).scalars()
        # Of a task that runs a search: its search's idle trials give their slots back then.
        change.notify(topics.SCHEDULER, *map(topics.task, tasks))


async def lost_legs(conn: AsyncConnection, task_id: str) -> tuple[int, float]:
    """The number of the trial's last legs in a row that the platform has lost, and the seconds since the last
    leg ended (0 if there was none). Those that there was no room for are left out."""
    found = await conn.execute(_LAST_LEGS, {"task_id": task_id, "most": LOST_IN_A_ROW})
    rows = list(found)
    lost = itertools.takewhile(lambda row: row.state == Outcome.LOST, rows)
    return sum(1 for _ in lost), float(rows[0].ended_s) if rows else 0.0


async def live_of_experiment(change: Change, experiment_id: int) -> list[sa.Row[Any]]:
    """The experiment's allocations that have not ended, locked."""
    return await lock_live(change, allocations.c.experiment_id == experiment_id)
