"""The cluster configuration: from the file into force.

The configuration in force is in the database, so that every process of the service has the same; the file is
read when a process starts. A file that cannot be put into force changes nothing: what was in force stays, and
the reason is in the log and in ``GET /api/v1/master/config``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common import cluster_config
from determined.common.cluster_config import ClusterConfig
from determined.expconf import ConfigError
from determined.expconf.heeding import KUBERNETES, PROCESSES
from determined_registry.database.tables import cluster, pools
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.hub import Hub
from determined_service.base.settings import Settings
from determined_service.state import presence, states
from determined_service.state.change import changing, reader

logger = logging.getLogger(__name__)

SWEEP_S = 300.0
"""Seconds after which a process looks whether another configuration is in force, even if nothing was
announced."""
_ENDED = sorted(states.ENDED)
_NAMED = 5
"""Experiments or agents that a refusal names."""


class NotPossible(Exception):
    """The configuration cannot be put into force now; the message names the obstacle."""


async def begin(db: Database, settings: Settings) -> None:
    """Put the file into force; if it is refused, keep the present configuration and log the reason.

    Raises NotPossible when the file cannot be put into force and nothing is.
    """
    try:
        given, remarks = await asyncio.to_thread(_read, settings)
        for remark in remarks:
            logger.warning("%s", remark)
        await put(db, given, settings)
        settings.put_in_force(given)
    except (ConfigError, NotPossible) as error:
        before = await in_force(db)
        if before is None:
            raise NotPossible(f"the cluster configuration cannot be used:\n{error}") from error
        settings.put_in_force(before, refusal=str(error))
        logger.error(
            "the cluster configuration %s is not put into force; the one before it stays:\n%s",
            settings.cluster_config_file or "without a file",
            error,
        )


def _read(settings: Settings) -> tuple[ClusterConfig, Sequence[cluster_config.Remark]]:
    path = settings.cluster_config_file
    return (ClusterConfig(), ()) if path is None else cluster_config.read_file(path)


async def in_force(db: Database) -> ClusterConfig | None:
    """The configuration in force, from the database; None: none was put into force yet."""
    async with reader(db).connect() as conn:
        found = (await conn.execute(sa.select(cluster.c.config))).scalar_one_or_none()
        return await _in_force(conn, found)


async def _in_force(conn: AsyncConnection, found: dict[str, Any] | None) -> ClusterConfig | None:
    if found is not None:
        return cluster_config.restored(found)
    # Of a release before there were configurations: its agents made the pools, one of them "default".
    names = list((await conn.execute(sa.select(pools.c.name).order_by(pools.c.name))).scalars())
    made = [cluster_config.PoolConfig(pool_name=name) for name in names]
    return ClusterConfig(resource_pools=made) if made else None


async def put(db: Database, given: ClusterConfig, settings: Settings) -> None:
    """Puts ``given`` into force for all processes. Raises NotPossible; then nothing is changed.

    Submissions share a lock on their pool's row (:func:`~.pools.require_pool`), so none gets into a
    pool that is being removed.
    """
    plain = cluster_config.stored(given)
    async with changing(db) as change:
        before = await _stored_for_update(change.conn)
        if in_the_way := await _change_pools(change.conn, before, given, settings):
            raise NotPossible("\n".join(in_the_way))
        if before != plain:
            await change.conn.execute(sa.update(cluster).values(config=plain))
            change.notify(topics.CLUSTER, topics.SCHEDULER)


async def objection(db: Database, text: str, settings: Settings) -> str:
    """The reason why a file with this ``text`` would be refused now; empty: it would not. Changes nothing."""
    try:
        given, _ = await asyncio.to_thread(cluster_config.read_text, text)
    except ConfigError as error:
        return str(error)
    # The end of the block rolls back.
    async with db.engine.connect() as conn:
        before = await _stored_for_update(conn)
        return "\n".join(await _change_pools(conn, before, given, settings))


async def _stored_for_update(conn: AsyncConnection) -> dict[str, Any] | None:
    locked = sa.select(cluster.c.config).with_for_update()
    found: dict[str, Any] | None = (await conn.execute(locked)).scalar_one()
    return found


async def _change_pools(
    conn: AsyncConnection, before: dict[str, Any] | None, given: ClusterConfig, settings: Settings
) -> list[str]:
    """The pools become those of ``given``. Returns what is in the way; then the caller must roll back."""
    old = await _in_force(conn, before) or given
    names = [pool.pool_name for pool in given.pools]
    for pool in given.pools:
        values = {"description": pool.description, "removed": False}
        # Prefect's work pool is made before the first agent comes, and keeps the type that it is made with.
        on_kubernetes = given.manager_of(pool.pool_name).type == "kubernetes"
        worker_type = KUBERNETES if on_kubernetes else PROCESSES
        await conn.execute(
            insert(pools)
            .values(name=pool.pool_name, worker_type=worker_type, **values)
            .on_conflict_do_update(index_elements=[pools.c.name], set_=values)
        )
    leaving = await conn.execute(
        sa.update(pools)
        .where(pools.c.name.not_in(names), ~pools.c.removed)
        .values(removed=True)
        .returning(pools.c.name)
    )
    in_the_way = [
        text
        for name in sorted(leaving.scalars())
        if (text := await _keeps(conn, name, settings)) is not None
    ]
    return in_the_way + await _keeps_flows(conn, old, given, settings)


_UNFINISHED = "NOT e.unmanaged AND e.state <> ALL(:ended)"
_WORK = sa.text(
    f"""
    SELECT
        (SELECT coalesce(array_agg(e.id ORDER BY e.id), '{{}}') FROM experiments e
         WHERE e.resource_pool = :pool AND {_UNFINISHED}) AS experiments,
        (SELECT coalesce(array_agg(a.task_id ORDER BY a.id), '{{}}') FROM allocations a
         WHERE a.resource_pool = :pool AND a.state <> 'TERMINATED' AND a.experiment_id IS NULL) AS tasks,
        (SELECT coalesce(array_agg(g.id ORDER BY g.id), '{{}}') FROM agents g
         WHERE g.resource_pool = :pool AND g.id <> ALL(:local)
           AND {presence.is_alive()}) AS agents
    """
)
_UNFINISHED_EXPERIMENTS = sa.text(f"SELECT e.id FROM experiments e WHERE {_UNFINISHED} ORDER BY 1")
_UNFINISHED_DELETIONS = sa.text(
    "SELECT d.id FROM deletions d JOIN tasks k ON k.id = d.task_id"
    " WHERE k.end_time IS NULL ORDER BY d.id"
)


def _of_pool(pool: str, settings: Settings) -> dict[str, Any]:
    """The parameters of :data:`_WORK`."""
    return {
        "pool": pool,
        "local": settings.local_agents,
        "timeout": settings.agent_timeout_s,
        "ended": _ENDED,
    }


async def _keeps(conn: AsyncConnection, pool: str, settings: Settings) -> str | None:
    """The reason why a pool cannot leave the configuration, in words."""
    row = (await conn.execute(_WORK, _of_pool(pool, settings))).one()
    there = [
        text
        for noun, names in (
            ("unfinished experiment", row.experiments),
            ("task", row.tasks),
            ("live agent", row.agents),
        )
        if (text := _counted(noun, names))
    ]
    if not there:
        return None
    return (
        f"resource_pools: the resource pool {pool!r} cannot be removed, because it has {_joined(there)}. "
        "Let them end, or stop them (det experiment kill ID; an agent: end its process), and apply the "
        "configuration again; or leave the pool in it"
    )


async def _keeps_flows(
    conn: AsyncConnection, old: ClusterConfig, given: ClusterConfig, settings: Settings
) -> list[str]:
    """Prefect's runs cannot move between work pools, and agents serve one each: they need one that stays."""
    before, after = old.pool_of_flows, given.pool_of_flows
    if before == after:
        return []
    stays = before in {pool.pool_name for pool in given.pools}
    if stays and (await conn.execute(_WORK, _of_pool(before, settings))).one().agents:
        return []
    unfinished = await conn.execute(_UNFINISHED_EXPERIMENTS, {"ended": _ENDED})
    ids = list(unfinished.scalars())
    deletions = list((await conn.execute(_UNFINISHED_DELETIONS)).scalars())
    there = [_counted("unfinished experiment", ids), _counted("running deletion", deletions)]
    if not any(there):
        return []
    return [
        f"resource_manager.default_compute_resource_pool: it cannot change from {before!r} to {after!r} now, "
        f"because the flows of {_joined([text for text in there if text])} run there, and no agent stays "
        f"there to run them. Start one (det agent start --pool {before}), if the configuration keeps "
        f"{before!r}, or let them end, or end them (det experiment cancel ID), and apply the configuration "
        "again"
    ]


def _counted(noun: str, names: Sequence[Any]) -> str:
    if not names:
        return ""
    shown = ", ".join(str(name) for name in names[:_NAMED])
    more = ", …" if len(names) > _NAMED else ""
    return f"{len(names)} {noun}{'s' if len(names) > 1 else ''} ({shown}{more})"


def _joined(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


async def follow(db: Database, hub: Hub, settings: Settings) -> None:
    """Takes over what other processes of the service put into force."""

    async def look() -> None:
        found = await in_force(db)
        if found is not None and found != settings.cluster:
            settings.put_in_force(found)
            logger.info("another process has put a new cluster configuration into force")

    while True:
        try:
            await hub.poll([topics.CLUSTER], look, SWEEP_S)
        except sa.exc.OperationalError as error:
            logger.warning("Postgres does not answer, the cluster configuration stays: %s", error)
            await asyncio.sleep(SWEEP_S / 30)
