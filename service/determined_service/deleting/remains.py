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


async def note_left(change: Change, left: Mapping[UUID, Mapping[str, int] | None]) -> None:
    """Somebody has deleted files: by checkpoint, those that are left (None: as before).

    From one that is not whole no leg starts any more, but from the latest one that is. Raises NotFound.
    """
    for uuid, resources in left.items():
        await lock_users(change.conn, uuid)
        found = await change.conn.execute(
            sa.select(c.resources, c.state).where(c.uuid == uuid).with_for_update()
        )
        row = found.first()
        if row is None:
            raise NotFound(f"checkpoint {uuid} does not exist")
        if resources is None:
            continue
        state = state_without(row.state, row.resources, resources)
        await change.conn.execute(
            sa.update(checkpoints)
            .where(c.uuid == uuid)
            .values(resources=dict(resources), size=sum(resources.values()), state=state)
        )
        if state != "COMPLETED":
            await forget_latest(change.conn, uuid)
