"""Files that tasks leave behind for their owners: written in pieces by supervisors, kept for some days."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import Quotas
from determined.common.wire import returned
from determined.common.wire.returned import Returned
from determined_registry.database.tables import (
    allocations,
    task_file_pieces,
    task_files,
    tasks,
)
from determined_service.base.db import Database
from determined_service.base.errors import BadRequest, Conflict, NotFound
from determined_service.lifecycle.quotas import require_room
from determined_service.state import states
from determined_service.state.change import reader

_f, _p = task_files.c, task_file_pieces.c
MOST_PIECES = 2 * returned.MOST_BYTES // returned.PIECE_BYTES + 1


async def _task(conn: AsyncConnection, allocation_id: str) -> str:
    """The task of an allocation that has not ended, and whose files come back. Raises Conflict."""
    asked = (
        sa.select(allocations.c.task_id)
        .join(tasks, tasks.c.id == allocations.c.task_id)
        .where(
            allocations.c.id == allocation_id,
            allocations.c.state != states.TERMINATED,
            tasks.c.config[returned.FIELD].astext == "true",
        )
    )
    found: str | None = (await conn.execute(asked)).scalar_one_or_none()
    if found is None:
        raise Conflict(f"allocation {allocation_id} has ended, or its task returns no files")
    return found


async def store_piece(conn: AsyncConnection, allocation_id: str, number: int, piece: bytes) -> None:
    """Said again it is the same piece. Raises BadRequest, Conflict."""
    if not 0 <= number < MOST_PIECES or len(piece) > returned.PIECE_BYTES:
        raise BadRequest(f"piece {number} of {len(piece)} bytes: that is too much")
    task_id = await _task(conn, allocation_id)
    await conn.execute(insert(task_files).values(task_id=task_id).on_conflict_do_nothing())
    given = insert(task_file_pieces).values(task_id=task_id, number=number, content=piece)
    await conn.execute(
        given.on_conflict_do_update(
            index_elements=[_p.task_id, _p.number], set_={"content": given.excluded.content}
        )
    )


async def finish(
    conn: AsyncConnection, allocation_id: str, report: Returned, quotas: Quotas
) -> None:
    """Check that all pieces have arrived. Raises Conflict when they have not; OverQuota, and then they must
    be deleted (:func:`drop_of`)."""
    task_id = await _task(conn, allocation_id)
    counted = sa.select(
        sa.func.count(), sa.func.coalesce(sa.func.sum(sa.func.octet_length(_p.content)), 0)
    ).where(_p.task_id == task_id, _p.number < report.pieces)
    count, size = (await conn.execute(counted)).one()
    if (count, size) != (report.pieces, report.size):
        raise Conflict(f"{count} pieces of {size} bytes are here, not all of them")
    values = {"size": size, "ready": True, "remarks": report.remarks[: returned.MOST_REMARKS]}
    given = insert(task_files).values(task_id=task_id, **values)
    await conn.execute(given.on_conflict_do_update(index_elements=[_f.task_id], set_=values))
    owner = await conn.execute(sa.select(tasks.c.owner_id).where(tasks.c.id == task_id))
    await require_room(conn, quotas, owner.scalar_one(), "returned_file_bytes")


async def drop_of(conn: AsyncConnection, allocation_id: str) -> None:
    """Delete the files of the allocation's task, because its owner has no room for them."""
    of = sa.select(allocations.c.task_id).where(allocations.c.id == allocation_id)
    await conn.execute(sa.delete(task_files).where(_f.task_id == of.scalar_subquery()))


@dataclass(frozen=True, slots=True)
class Kept:
    """The stored files of a task, complete."""

    task_id: str
    size: int
    remarks: list[str]

    async def pieces(self, db: Database) -> AsyncIterator[bytes]:
        """No connection to the database is held between two pieces. Raises NotFound."""
        number, left = 0, self.size
        while left > 0:
            async with reader(db).connect() as conn:
                asked = sa.select(_p.content).where(_p.task_id == self.task_id, _p.number == number)
                found: Any = (await conn.execute(asked)).scalar_one_or_none()
            if found is None:
                raise NotFound(f"the files of task {self.task_id} are not kept any more")
            piece = bytes(found)[:left]
            yield piece
            number, left = number + 1, left - len(piece)


async def find(conn: AsyncConnection, task_id: str) -> Kept | None:
    """None: nothing is kept, or not yet."""
    asked = sa.select(task_files).where(_f.task_id == task_id, _f.ready)
    row = (await conn.execute(asked)).first()
    return None if row is None else Kept(task_id, row.size, row.remarks)


async def drop(conn: AsyncConnection, task_id: str) -> None:
    """The owner has them."""
    await conn.execute(sa.delete(task_files).where(_f.task_id == task_id))


async def drop_old(conn: AsyncConnection) -> None:
    """Those that nobody has fetched in time."""
    limit = sa.func.now() - sa.func.make_interval(0, 0, 0, returned.KEPT_DAYS)
    await conn.execute(sa.delete(task_files).where(_f.created_at < limit))
