"""Counts logs against their owners' quota (``quotas.log_bytes``).

The stored bytes of logs are counted per task, in the transaction that stores it; the sum over an owner's
tasks is looked up now and then, so logs grow for up to :data:`REMEMBER_S` beyond the quota. Further lines are
thrown away, which the log says once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import Quotas
from determined_registry.database.tables import tasks

REMEMBER_S = 5.0
OWNERS = 20_000
"""Tasks whose owner is remembered."""
ROW_BYTES = 64
"""Bytes of a line beside its fields, in the table and its index."""

_SUM = sa.text(
    """
    SELECT u.id, u.username,
           coalesce((SELECT sum(s.bytes) FROM log_sizes s WHERE s.owner_id = u.id), 0)::bigint AS bytes
    FROM users u WHERE u.id = ANY(:owners)
    """
)
_GIVEN = """
    FROM unnest(cast(:tasks AS text[]), cast(:sizes AS bigint[])) AS g (task_id, bytes)
    JOIN tasks k ON k.id = g.task_id
"""
_ADD = sa.text(
    f"""
    INSERT INTO log_sizes AS s (task_id, owner_id, bytes) SELECT k.id, k.owner_id, g.bytes {_GIVEN}
    ON CONFLICT (task_id) DO UPDATE SET bytes = s.bytes + excluded.bytes, is_cut = false
    """
)
_CUT = sa.text(
    f"""
    INSERT INTO log_sizes AS s (task_id, owner_id, is_cut) SELECT k.id, k.owner_id, true {_GIVEN}
    ON CONFLICT (task_id) DO UPDATE SET is_cut = true WHERE NOT s.is_cut
    RETURNING s.task_id
    """
)


@dataclass(slots=True)
class _Used:
    username: str
    bytes: int
    until: float


def _notice(used: _Used, most: int) -> str:
    return (
        f"The logs of user {used.username} take {used.bytes} bytes, and at most {most} are allowed "
        "(quotas.log_bytes): the lines that follow are not stored until there is room. Delete experiments "
        "that nobody needs any more (det experiment delete ID), or ask an administrator, who may raise it in "
        "the cluster configuration."
    )


class LogRoom:
    """Decides for one process whose lines are stored. ``quotas``: those that are in force."""

    def __init__(self, quotas: Callable[[], Quotas]) -> None:
        self._quotas = quotas
        self._owners: dict[str, int] = {}
        self._used: dict[int, _Used] = {}

    async def take(
        self, conn: AsyncConnection, sizes: Mapping[str, int]
    ) -> tuple[set[str], dict[str, str]]:
        """Counts the bytes that are about to be stored for each task (locked, as its lines are).

        Returns the tasks whose lines must not be stored, and sentences for the logs of some.
        """
        await self._find_owners(conn, sizes)
        await self._sum(conn, {self._owners[task] for task in sizes if task in self._owners})
        most = self._quotas().log_bytes
        full = {
            task: used
            for task in sizes
            if (owner := self._owners.get(task)) is not None
            and (used := self._used[owner]).bytes >= most
        }
        stored = [task for task in sizes if task not in full]
        if stored:
            await conn.execute(_ADD, {"tasks": stored, "sizes": [sizes[task] for task in stored]})
        if not full:
            return set(), {}
        cut = await conn.execute(_CUT, {"tasks": list(full), "sizes": [0] * len(full)})
        return set(full), {task: _notice(full[task], most) for task in cut.scalars()}

    async def _find_owners(self, conn: AsyncConnection, sizes: Mapping[str, int]) -> None:
        unknown = [task for task in sizes if task not in self._owners]
        if not unknown:
            return
        if len(self._owners) + len(unknown) > OWNERS:
            self._owners.clear()
            unknown = list(sizes)
        found = await conn.execute(
            sa.select(tasks.c.id, tasks.c.owner_id).where(tasks.c.id.in_(unknown))
        )
        self._owners.update({row.id: row.owner_id for row in found})

    async def _sum(self, conn: AsyncConnection, owners: set[int]) -> None:
        now = time.monotonic()
        stale = [
            owner for owner in owners if (used := self._used.get(owner)) is None or used.until < now
        ]
        if stale:
            for row in await conn.execute(_SUM, {"owners": stale}):
                self._used[row.id] = _Used(row.username, row.bytes, now + REMEMBER_S)
