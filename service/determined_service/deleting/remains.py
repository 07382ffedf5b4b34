"""The state of a checkpoint after some or all of its files were deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from determined_registry.database.tables import checkpoints
from determined_service.base.errors import NotFound
from determined_service.deleting.damage import forget_latest, lock_users
from determined_service.state.change import Change

c = checkpoints.c


def state_without(state: str, before: Mapping[str, Any], left: Mapping[str, Any]) -> str:
    """The state of a checkpoint in ``state`` that had the files ``before`` and has those ``left``: DELETED
    without any, PARTIALLY_DELETED with fewer, else the state that it had."""
    if not left:
        return "DELETED"
    return "PARTIALLY_DELETED" if left.keys() < before.keys() else state


def still_there(row: sa.Row[Any], left: Mapping[str, int]) -> dict[str, int]:
    """The files of a checkpoint (its row has ``state`` and ``resources``), of which somebody has deleted some
    and then seen those ``left``.

    Nothing comes back: of two who delete at once each may see a file that the other one has deleted by then.
    """
    if not row.resources and row.state != "DELETED":
        return dict(left)  # nobody has said which files it has
    return {path: size for path, size in left.items() if path in row.resources}


async def note_left(change: Change, left: Mapping[UUID, Mapping[str, int] | None]) -> None:
    """Somebody has deleted files: by checkpoint, those that are left (None: as before).

    From one that is not whole no leg starts any more, but from the latest one that is. Raises NotFound.
    """
    await lock_users(change.conn, *left)
    found = await change.conn.execute(
        sa.select(c.uuid, c.resources, c.state)
        .where(c.uuid.in_(left))
        .order_by(c.uuid)
        .with_for_update()
    )
    rows = list(found)
    if missing := left.keys() - {row.uuid for row in rows}:
        raise NotFound(f"no such checkpoint: {', '.join(sorted(map(str, missing)))}")
    for row in rows:
        given = left[row.uuid]
        if given is None:
            continue
        resources = still_there(row, given)
        state = state_without(row.state, row.resources, resources)
        await change.conn.execute(
            sa.update(checkpoints)
            .where(c.uuid == row.uuid)
            .values(resources=resources, size=sum(resources.values()), state=state)
        )
        if state != "COMPLETED":
            await forget_latest(change.conn, row.uuid)
