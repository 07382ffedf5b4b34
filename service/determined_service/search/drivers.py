"""The signs of life of the processes that drive searches: the experiments' flows."""

from __future__ import annotations

import datetime
import time
import uuid

import sqlalchemy as sa

from determined_registry.database.tables import searches
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.hub import notify
from determined_service.state.change import reader

DRIVER_QUIET_S = 20.0
"""After this many seconds without a request, Prefect is asked what became of the driver's run."""
DRIVER_LOST_S = 60.0
"""After this many, a driver whose run Prefect still shows as running is given up; and the doctor is told."""
WRITE_S = 5.0
"""A driver's sign of life is written at most this often, in seconds."""
FORGET_S = 60.0


class Drivers:
    """Writes when a driver was last seen, but not for each of its requests. One per process."""

    def __init__(self) -> None:
        self._written: dict[uuid.UUID, float] = {}

    async def note(self, db: Database, experiment_id: int, driver: uuid.UUID) -> None:
        """The driver has just asked for something."""
        now = time.monotonic()
        if now - self._written.get(driver, -WRITE_S) < WRITE_S:
            return
        for old in [key for key, at in self._written.items() if now - at > FORGET_S]:
            del self._written[old]
        self._written[driver] = now
        async with reader(db).connect() as conn:
            await conn.execute(
                sa.update(searches)
                .where(searches.c.experiment_id == experiment_id, searches.c.driver == driver)
                .values(driver_seen_at=sa.func.now())
            )

    async def suspect(self, db: Database, experiment_id: int, driver: uuid.UUID) -> None:
        """The driver hung up during a long poll, so it may have been killed.

        The reconciler looks at the driver's run soon, unless the driver asks for something first.
        """
        self._written.pop(driver, None)
        async with reader(db).connect() as conn:
            await conn.execute(
                sa.update(searches)
                .where(searches.c.experiment_id == experiment_id, searches.c.driver == driver)
                .values(driver_seen_at=sa.func.now() - datetime.timedelta(seconds=DRIVER_QUIET_S))
            )
            await notify(conn, topics.RECONCILER)
