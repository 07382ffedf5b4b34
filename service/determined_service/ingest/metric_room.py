"""Counts metrics against their owners' quota (``quotas.metric_bytes``).

The bytes of each trial's reports are counted by the statement that stores their summaries. The sum over an
owner's trials is looked up once a minute; meanwhile each process adds what it stores.

Above the quota an owner begins no experiments (:mod:`determined_service.lifecycle.quotas`). Trials that run
would lose their work, so their reports are refused above :data:`RUNNING` times the quota only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import Quotas
from determined_service.base.refusals import OverQuota

REMEMBER_S = 60.0
OWNERS = 20_000
"""Owners whose sum is remembered."""
RUNNING = 2
ROW_BYTES = 100
"""Bytes of a report beside its metrics, in the table and its indices."""

_SUM = sa.text(
    """
    SELECT u.id, u.username, (
        SELECT coalesce(sum(s.bytes), 0) FROM metric_sizes s WHERE s.owner_id = u.id)::bigint AS bytes
    FROM users u WHERE u.id = ANY(:owners)
    """
)


@dataclass(slots=True)
class _Used:
    username: str
    bytes: int
    until: float


class MetricRoom:
    """Decides for one process whose reports are stored. ``quotas``: those that are in force."""

    def __init__(self, quotas: Callable[[], Quotas]) -> None:
        self._quotas = quotas
        self._used: dict[int, _Used] = {}

    async def refusals(
        self, conn: AsyncConnection, owners: Collection[int]
    ) -> dict[int, OverQuota]:
        """Those of the users ``owners`` who may report nothing more."""
        now = time.monotonic()
        stale = [one for one in owners if one not in self._used or self._used[one].until < now]
        if len(self._used) + len(stale) > OWNERS:
            self._used.clear()
            stale = list(owners)
        if stale:
            for row in await conn.execute(_SUM, {"owners": stale}):
                self._used[row.id] = _Used(row.username, row.bytes, now + REMEMBER_S)
        most = RUNNING * self._quotas().metric_bytes
        used = {one: self._used[one] for one in owners}
        return {
            one: OverQuota(
                f"the metrics of user {of.username} take {of.bytes} bytes, and trials that run may report "
                f"until {most} ({RUNNING} times quotas.metric_bytes): delete experiments that nobody needs "
                "any more (det experiment delete ID), or ask an administrator, who may raise it in the "
                "cluster configuration"
            )
            for one, of in used.items()
            if of.bytes >= most
        }

    def add(self, sizes: Mapping[tuple[int, int], int]) -> None:
        """``sizes``: bytes that are being stored, by trial and owner."""
        for (_, owner_id), size in sizes.items():
            self._used[owner_id].bytes += size
