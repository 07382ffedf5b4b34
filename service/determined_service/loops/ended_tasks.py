"""Deletes ended commands, notebooks, shells and other tasks of users who have nearly as many as
``quotas.stored_tasks`` allows, the earliest first: :func:`trim_forever`.

Nobody can delete such tasks by hand, so without this loop the quota would end a user's launches for ever. A
task is kept for :data:`KEPT` after its end: a program that launches without end, with a user's token, cannot
push out the logs of what the user launched before.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from typing import Any

import httpx
import sqlalchemy as sa

from determined_registry.database.tables import tasks
from determined_service.base.db import Database
from determined_service.base.settings import Settings
from determined_service.deleting import erasure, notebook_files
from determined_service.prefect.gateway import PrefectGateway
from determined_service.state import states
from determined_service.state.change import changing, reader

logger = logging.getLogger(__name__)

PASS_S = 600.0
KEPT = datetime.timedelta(days=30)
FULL = 0.9
"""The share of the quota above which tasks are deleted, so that there is room for launches until the next
pass."""
MOST = 500
"""Tasks of one owner that one pass deletes."""

_t = tasks.c
_LAUNCHED = _t.job_id.is_not(None)


def _outdated(owner_id: int) -> sa.Select[Any]:
    return (
        sa.select(_t.id, _t.flow_run_id)
        .where(
            _LAUNCHED,
            _t.owner_id == owner_id,
            _t.state.in_(states.TERMINAL),
            _t.end_time < sa.func.now() - KEPT,
            sa.not_(notebook_files.HAS_FILES),
            sa.not_(notebook_files.FILES_ARE_GOING),
        )
        .order_by(_t.end_time, _t.id)
    )


async def trim(db: Database, gateway: PrefectGateway | None, most: int) -> int:
    """One pass, with ``most`` tasks for each owner; returns the number of deleted tasks.

    A task's run in Prefect is deleted first: a pass that is killed leaves no run without its task.
    """
    counts = sa.select(_t.owner_id, sa.func.count().label("number")).where(_LAUNCHED)
    counts = counts.group_by(_t.owner_id).having(sa.func.count() > FULL * most)
    async with reader(db).connect() as conn:
        full = list(await conn.execute(counts))
    deleted = 0
    for owner in full:
        over = min(owner.number - int(FULL * most), MOST)
        async with reader(db).connect() as conn:
            found = list(await conn.execute(_outdated(owner.owner_id).limit(over)))
        if not found:
            continue
        if gateway is not None:
            for row in found:
                if row.flow_run_id is not None:
                    await gateway.delete_run(row.flow_run_id)
        async with changing(db) as change:
            await erasure.erase_tasks(change, [row.id for row in found])
        deleted += len(found)
    return deleted


async def trim_forever(db: Database, gateway: PrefectGateway | None, settings: Settings) -> None:
    """In the leader's process."""
    while True:
        try:
            count = await trim(db, gateway, settings.cluster.quotas.stored_tasks)
            if count:
                logger.info("%d ended tasks were deleted (quotas.stored_tasks)", count)
        except (httpx.HTTPError, sa.exc.OperationalError) as error:
            logger.warning(
                "Prefect or Postgres does not answer, ended tasks are looked at later: %s", error
            )
        await asyncio.sleep(PASS_S)
