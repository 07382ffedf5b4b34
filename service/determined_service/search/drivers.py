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
from determined_service.state import run_records
from determined_service.state.change import reader

SUSPECT_S = 0.5
"""Seconds before a driver's hang-up is acted on: its agent tells Prefect of a crash only after a moment."""
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
            await run_records.seen(
                conn,
                run_records.EXPERIMENT,
                experiment_id,
                _drives(experiment_id, driver),
                quiet_s=run_records.QUIET_S,
            )

    async def suspect(self, db: Database, experiment_id: int, driver: uuid.UUID) -> None:
        """The driver hung up during a long poll, so it may have been killed.

        The keeper looks at the driver's run soon, unless the driver asks for something first.
        """
        self._written.pop(driver, None)
        now, soon = sa.func.now(), datetime.timedelta(seconds=SUSPECT_S)
        quiet = datetime.timedelta(seconds=run_records.QUIET_S)
        async with reader(db).connect() as conn:
            await conn.execute(
                sa.update(run_records.kept_runs)
                .where(run_records.r.experiment_id == experiment_id, _drives(experiment_id, driver))
                .values(seen_at=now - quiet, look_at=now + soon)
            )
            await notify(conn, topics.KEPT_RUNS)


def _drives(experiment_id: int, driver: uuid.UUID) -> sa.ColumnElement[bool]:
    s = searches.c
    return sa.exists().where(s.experiment_id == experiment_id, s.driver == driver)
