"""The orders with which agents start legs: :func:`leg_specs`."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.wire.legs import LegSpec
from determined_service.base.settings import Settings
from determined_service.lifecycle.kinds.table import slot_kind


async def leg_specs(
    conn: AsyncConnection, kinds: Mapping[str, str], settings: Settings, agent_id: str | None = None
) -> list[LegSpec]:
    """One order for each allocation in ``kinds`` (its id, and the name of its task's
    kind), in that order; of a gang those for the nodes on ``agent_id``."""
    by_kind: dict[str, list[str]] = {}
    for allocation_id, name in kinds.items():
        by_kind.setdefault(name, []).append(allocation_id)
    found: dict[str, list[LegSpec]] = {}
    for name, ids in by_kind.items():
        for order in await slot_kind(name).orders(conn, ids, settings, agent_id):
            found.setdefault(order.allocation_id, []).append(order)
    return [order for key in kinds for order in found.get(key, ())]
