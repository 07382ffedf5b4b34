"""The start of a leg's process that counts: of each allocation, or node of a gang, the first that is named.

A launcher may start a leg twice where the two see no common directory, so that no lock keeps them apart: the
controller of a Kubernetes Job makes a second pod of one that was deleted. The second is told so before it
runs any of the user's code. A supervisor that takes over from another goes on with its start's id.
"""

from __future__ import annotations

import sqlalchemy as sa

from determined_service.access.principal import ended
from determined_service.base.errors import BadRequest, Conflict, NotFound
from determined_service.state.change import Change

LONGEST = 100
"""Characters of an id."""
_TAKE = sa.text(
    """
    WITH alone AS (
        UPDATE allocations SET start_id = cast(:start_id AS text)
        WHERE id = :id AND nodes = 1 AND state IN ('ASSIGNED', 'RUNNING')
          AND coalesce(start_id, :start_id) = :start_id
        RETURNING id
    ), node AS (
        UPDATE allocation_resources SET start_id = :start_id
        WHERE allocation_id = :id AND node = :node AND state IN ('ASSIGNED', 'RUNNING')
          AND coalesce(start_id, :start_id) = :start_id
        RETURNING id
    )
    SELECT id FROM alone UNION ALL SELECT id FROM node
    """
)
_CURRENT = sa.text(
    """
    SELECT coalesce(r.state, a.state) AS state,
           CASE WHEN a.nodes = 1 THEN a.start_id ELSE r.start_id END AS start_id
    FROM allocations a LEFT JOIN allocation_resources r
        ON r.allocation_id = a.id AND r.node = :node AND a.nodes > 1
    WHERE a.id = :id
    """
)


async def take(change: Change, allocation_id: str, node: int | None, start_id: str) -> None:
    """Notes that this start is about to run the process. Raises BadRequest, NotFound; Conflict when the leg
    has ended, or when another start was there before."""
    require_id(start_id)
    given = {"id": allocation_id, "node": node, "start_id": start_id}
    if (await change.conn.execute(_TAKE, given)).first() is None:
        await require_current(change, allocation_id, node, start_id)
        raise ended(allocation_id)


async def require_current(
    change: Change, allocation_id: str, node: int | None, start_id: str
) -> str:
    """Raises Conflict for a report of another start than the one that counts; NotFound. The state of the
    allocation, or of that node of a gang."""
    found = await change.conn.execute(_CURRENT, {"id": allocation_id, "node": node})
    row = found.first()
    if row is None:
        raise NotFound(f"allocation {allocation_id} does not exist")
    require_same(allocation_id, row.start_id, start_id)
    return str(row.state)


def require_same(allocation_id: str, known: str | None, start_id: str) -> None:
    """Raises Conflict if both are known and differ: an agent, and the release before, give none."""
    if known and start_id and known != start_id:
        raise Conflict(
            f"allocation {allocation_id} was started before this start of it, and that one counts"
        )


def require_id(start_id: str) -> None:
    """Raises BadRequest for what is no id."""
    if not start_id.isprintable() or len(start_id) > LONGEST:
        raise BadRequest(
            f"start_id: expected at most {LONGEST} printable characters, found {len(start_id)}"
        )
