"""Config policies: stored, put into force in every process, and looked up for what runs already."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from determined.common.cluster_config import ClusterConfig
from determined.expconf.heeding import HEEDS_PRIORITY, KUBERNETES
from determined_registry.database.tables import config_policies, pools, tasks, workspaces
from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.hub import Hub
from determined_service.base.policies import PriorityOrder, limit_priority
from determined_service.base.policy import (
    EXPERIMENT,
    TASKS,
    ConfigPolicy,
    Held,
    Policies,
)
from determined_service.base.settings import Settings
from determined_service.lifecycle.places import workspace_of
from determined_service.state.change import Change, reader

logger = logging.getLogger(__name__)

SWEEP_S = 300.0
"""Seconds after which a process reads the policies again, even if nothing was announced."""

c = config_policies.c


async def load(db: Database, settings: Settings) -> None:
    """Puts the stored policies into force in this process."""
    # Of two that read at the same time, the one that began last is right.
    turn = settings.next_turn()
    async with reader(db).connect() as conn:
        found = await conn.execute(sa.select(c.workload, c.workspace_id, c.content))
        known = {
            (row.workload, row.workspace_id): orjson.dumps(row.content, option=orjson.OPT_SORT_KEYS)
            for row in found
        }
    settings.put_policies_in_force(Policies(known), turn)


async def follow(db: Database, hub: Hub, settings: Settings) -> None:
    """Takes over what other processes of the service set."""
    while True:
        try:
            await hub.poll([topics.POLICIES], lambda: load(db, settings), SWEEP_S)
        except sa.exc.OperationalError as error:
            logger.warning("Postgres does not answer, the config policies stay: %s", error)
            await asyncio.sleep(SWEEP_S / 30)


async def put(
    change: Change,
    workload: str,
    workspace_id: int | None,
    content: Mapping[str, Any],
    user_id: int,
) -> None:
    """Sets the (checked) policy of a workspace, or the global one, in place of the one before."""
    values = {
        "content": dict(content),
        "updated_by": user_id,
        "updated_at": sa.func.clock_timestamp(),
    }
    await change.conn.execute(
        insert(config_policies)
        .values(workload=workload, workspace_id=workspace_id, **values)
        .on_conflict_do_update(
            index_elements=[sa.text("coalesce(workspace_id, 0)"), c.workload], set_=values
        )
    )
    change.notify(topics.POLICIES)


async def delete(change: Change, workload: str, workspace_id: int | None) -> None:
    """Takes the policy away; nothing happens if there is none."""
    await change.conn.execute(
        sa.delete(config_policies).where(c.workload == workload, _is(workspace_id))
    )
    change.notify(topics.POLICIES)


async def find(conn: AsyncConnection, workload: str, workspace_id: int | None) -> dict[str, Any]:
    """The policy as it was set; {}: there is none."""
    wanted = sa.select(c.content).where(c.workload == workload, _is(workspace_id))
    return dict(await conn.scalar(wanted) or {})


def _is(workspace_id: int | None) -> sa.ColumnElement[bool]:
    return c.workspace_id.is_(None) if workspace_id is None else c.workspace_id == workspace_id


async def of_experiment(conn: AsyncConnection, experiment_id: int) -> Held:
    """The policies that hold now for an experiment."""
    return await _held(conn, EXPERIMENT, workspace_of(experiment_id))


async def of_task(conn: AsyncConnection, task_id: str) -> Held:
    """The policies that hold now for a launched task."""
    place = sa.select(tasks.c.workspace_id).where(tasks.c.id == task_id).scalar_subquery()
    return await _held(conn, TASKS, place)


async def _held(conn: AsyncConnection, workload: str, place: sa.ScalarSelect[Any]) -> Held:
    found = await conn.execute(
        sa.select(workspaces.c.name, c.content)
        .select_from(config_policies.outerjoin(workspaces, workspaces.c.id == c.workspace_id))
        .where(c.workload == workload, sa.or_(c.workspace_id.is_(None), c.workspace_id == place))
        .order_by(c.workspace_id.nulls_first())
    )
    return tuple(ConfigPolicy(workload, row.name, orjson.dumps(row.content)) for row in found)


async def limited(
    conn: AsyncConnection, config: dict[str, Any], pool: str, held: Held, cluster: ClusterConfig
) -> tuple[dict[str, Any], list[str]]:
    """The complete configuration with a priority that is allowed in the pool, and remarks. Raises
    BadRequest."""
    if all(policy.priority_limit is None for policy in held):
        return config, []
    resources = config["resources"]
    order = await order_of(conn, pool, cluster)
    priority, remarks = limit_priority(held, resources["priority"], order, "resources.priority")
    return {**config, "resources": {**resources, "priority": priority}}, remarks


async def order_of(conn: AsyncConnection, pool: str, cluster: ClusterConfig) -> PriorityOrder:
    """How the pool reads priorities."""
    kind = await conn.scalar(sa.select(pools.c.worker_type).where(pools.c.name == pool))
    has_pods = kind == KUBERNETES
    scheduler = cluster.scheduler_of(pool, kubernetes=has_pods)
    higher = has_pods or cluster.manager_of(pool).type == "kubernetes"
    heeds = scheduler.type in HEEDS_PRIORITY
    return PriorityOrder(pool, higher, scheduler.default_priority if heeds else None)
