"""Updates a checkpoint's row after some or all of its files were deleted.

When its last file is gone its state is DELETED for ever and its size 0; ``resources`` stays the list of the
files that it had.
"""

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


def values_of(row: sa.Row[Any], left: Mapping[str, int], *, looked: bool = False) -> dict[str, Any]:
    """The new ``state``, ``resources`` and ``size`` of a checkpoint (its locked row has ``state`` and
    ``resources``) after files were deleted; ``left`` are the files seen afterwards.

    DELETED without any file, PARTIALLY_DELETED with fewer than before, else the state that it had. Nothing
    comes back: of two who delete at once each may see a file that the other one has deleted by then.
    ``looked``: the run only listed the files, so the listed files exist.
    """
    there = dict(left)
    if row.resources and not looked:  # else nobody has said which files it has
        there = {path: size for path, size in left.items() if path in row.resources}
    if row.state == "DELETED" or not there:
        return {"state": "DELETED", "resources": row.resources, "size": 0}
    state = "PARTIALLY_DELETED" if there.keys() < row.resources.keys() else row.state
    return {"state": state, "resources": there, "size": sum(there.values())}


async def note_left(change: Change, left: Mapping[UUID, Mapping[str, int] | None]) -> None:
    """Record deleted files: by checkpoint, the files left (None: as before).

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
        values = values_of(row, given)
        await change.conn.execute(sa.update(checkpoints).where(c.uuid == row.uuid).values(values))
        if values["state"] != "COMPLETED":
            await forget_latest(change.conn, row.uuid)
