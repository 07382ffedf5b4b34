"""Finds the fields of a configuration that are ignored where it runs, by
:mod:`determined.expconf.unheeded`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import ClusterConfig, restored
from determined.common.wire.agents import MOUNTS
from determined.expconf.doubts import doubts
from determined.expconf.heeding import Surroundings
from determined.expconf.unheeded import dropped, unheeded, unmounted

# A pool that never had an agent has no type yet.
_FACTS = f"""
    (SELECT p.worker_type FROM pools p WHERE p.name = :pool
     AND EXISTS (SELECT FROM agents g WHERE g.resource_pool = p.name)) AS worker_type,
    (SELECT max(g.lacks ->> '{MOUNTS}') FROM agents g WHERE g.resource_pool = :pool) AS no_mounts,
    (SELECT config FROM cluster) AS cluster
"""
_POOL = sa.text(f"SELECT {_FACTS}")
_TRIAL = sa.text(f"SELECT config, original_config, {_FACTS} FROM experiments WHERE id = :id")
_CONFIG = sa.text("SELECT config FROM experiments WHERE id = :id")


@functools.lru_cache(maxsize=4)
def _cluster(stored: bytes) -> ClusterConfig:
    return restored(orjson.loads(stored))


async def surroundings(conn: AsyncConnection, pool: str, *, is_task: bool = False) -> Surroundings:
    """Those of ``pool``, as they are now."""
    return _of((await conn.execute(_POOL, {"pool": pool})).one(), pool, is_task)


def _of(row: sa.Row[Any], pool: str, is_task: bool = False) -> Surroundings:
    scheduler = None
    if row.cluster is not None:
        scheduler = _cluster(orjson.dumps(row.cluster)).scheduler_of(pool).type
    return Surroundings(pool, scheduler, row.worker_type, is_task, no_mounts=row.no_mounts)


async def remarks(
    conn: AsyncConnection,
    config: Mapping[str, Any],
    pool: str,
    *,
    original: str | None = None,
    is_task: bool = False,
) -> list[str]:
    """A sentence for each setting of the (complete) ``config`` that is ignored in ``pool``, for each field of
    its ``original`` text that is not stored, and for each value that is probably a mistake."""
    where = await surroundings(conn, pool, is_task=is_task)
    return [*dropped(original or ""), *unheeded(config, where), *doubts(config)]


def remarks_outside(config: Mapping[str, Any], original: str | None) -> list[str]:
    """The same of an unmanaged experiment."""
    return [*dropped(original or ""), *unheeded(config, Surroundings(unmanaged=True))]


async def remarks_on_trial(conn: AsyncConnection, experiment_id: int, pool: str) -> list[str]:
    """The ignored fields of a trial of the experiment in ``pool``, for the top of its log."""
    row = (await conn.execute(_TRIAL, {"id": experiment_id, "pool": pool})).one()
    return [*dropped(row.original_config or ""), *unheeded(row.config, _of(row, pool))]


async def of_failure(
    conn: AsyncConnection, experiment_id: int, pool: str, reason: str
) -> str | None:
    """The part that a missing mount may have in a trial's failure, in words; ``reason`` is the failure's."""
    config = (await conn.execute(_CONFIG, {"id": experiment_id})).scalar_one()
    if not config.get("bind_mounts"):
        return None
    return unmounted(config, reason, await surroundings(conn, pool))
