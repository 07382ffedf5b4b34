"""Work pools in Prefect: one for each resource pool of the cluster configuration."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

import httpx
import sqlalchemy as sa

from determined.common.backoff import Backoff
from determined_registry.database.tables import pools
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.hub import Hub, wait_at_most
from determined_service.base.settings import Settings
from determined_service.state.change import reader

logger = logging.getLogger(__name__)

PASS_S = 300.0
"""Seconds after which Prefect is looked at even if nothing has changed."""
RETRY_S = (1.0, 30.0)
"""Seconds until the next look while Prefect is away, or the agents have not registered every flow."""


class Side(Protocol):
    """The calls to Prefect; implemented by :class:`~determined_service.prefect.gateway.PrefectGateway`."""

    async def put_work_pool(self, name: str, worker_type: str, description: str) -> None:
        """Creates the work pool, or gives it the description (if that is not empty)."""

    async def pause_work_pool(self, name: str, *, paused: bool) -> None:
        """Pause the work pool or let it go on, if it exists."""

    async def place_deployments(self, pool: str, pools: Collection[str]) -> bool:
        """Moves our deployments from ``pools`` to ``pool``. Returns whether every pool existed."""


class WorkPools:
    """One per cluster (the leader's), where there is a Prefect."""

    def __init__(self, db: Database, side: Side, settings: Settings) -> None:
        self._db = db
        self._side = side
        self._settings = settings

    async def run(self, hub: Hub) -> None:
        """Repeat passes for ever: at once after a change of the configuration."""
        backoff = Backoff(*RETRY_S)
        with hub.subscribe([topics.CLUSTER]) as event:
            while True:
                event.clear()
                try:
                    if await self.run_pass():
                        backoff.reset()
                        wait_s = PASS_S
                    else:
                        wait_s = backoff.next_delay()
                except (httpx.HTTPError, sa.exc.OperationalError) as error:
                    # Prefect may start after the service.
                    logger.info("the work pools in Prefect are looked at later: %s", error)
                    wait_s = backoff.next_delay()
                await wait_at_most(event, wait_s)

    async def run_pass(self) -> bool:
        """Brings Prefect to the pools of the database, once. Returns whether the flows are in their pool.

        A removed pool is paused; only pools paused for this reason resume automatically.
        """
        async with reader(self._db).connect() as conn:
            rows = list(await conn.execute(sa.select(pools).order_by(pools.c.name)))
        for row in rows:
            if not row.removed:
                await self._side.put_work_pool(row.name, row.worker_type, row.description)
            if row.removed != row.prefect_paused:
                await self._side.pause_work_pool(row.name, paused=row.removed)
                await self._note(row.name, paused=row.removed)
        names = [row.name for row in rows]
        return await self._side.place_deployments(self._settings.cluster.pool_of_flows, names)

    async def _note(self, name: str, *, paused: bool) -> None:
        async with self._db.tx() as conn:
            await conn.execute(
                sa.update(pools).where(pools.c.name == name).values(prefect_paused=paused)
            )
