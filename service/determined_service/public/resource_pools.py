"""Resource pools: what the cluster configuration says of them, and what their agents have."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from determined.common.cluster_config import ClusterConfig, PoolConfig
from determined.expconf.heeding import KUBERNETES
from determined_registry.database.tables import agents, allocations, pools
from determined_service.access.dependencies import ClusterReader
from determined_service.public.agents import read_agents
from determined_service.views.paging import Limit, Offset, pagination, window
from determined_service.views.values import SCHEDULER_TYPES
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Cluster", "/api/v1")

_WITHOUT_SLOTS = sa.and_(allocations.c.state.in_(("ASSIGNED", "RUNNING")), allocations.c.slots == 0)


def pool_json(
    pool: PoolConfig,
    worker_type: str,
    members: list[dict[str, Any]],
    aux_running: int,
    cluster: ClusterConfig,
) -> dict[str, Any]:
    """A pool with its live agents ``members``, and the number of allocations without slots on them."""
    every = [slot for agent in members for slot in agent["slots"].values()]
    types = {slot["device"]["type"] for slot in every}
    scheduler = cluster.scheduler_of(pool.pool_name, kubernetes=worker_type == KUBERNETES)
    details: dict[str, Any] = {}
    if scheduler.type == "priority":
        details["priorityScheduler"] = {
            "preemption": scheduler.preemption,
            "defaultPriority": scheduler.default_priority,
        }
    return {
        "name": pool.pool_name,
        "description": pool.description,
        "type": "RESOURCE_POOL_TYPE_STATIC",
        "workerType": worker_type,
        "numAgents": len(members),
        "slotsAvailable": sum(slot["enabled"] for slot in every),
        "slotsUsed": sum(slot["container"] is not None for slot in every),
        "slotType": types.pop() if len(types) == 1 else "TYPE_UNSPECIFIED",
        "slotsPerAgent": max((len(agent["slots"]) for agent in members), default=0),
        "auxContainerCapacityPerAgent": pool.max_aux_containers_per_agent,
        "auxContainerCapacity": pool.max_aux_containers_per_agent * len(members),
        "auxContainersRunning": aux_running,
        "defaultComputePool": pool.pool_name == cluster.default_pool(1),
        "defaultAuxPool": pool.pool_name == cluster.default_pool(0),
        # Of machines that a cloud may take away.
        "preemptible": False,
        "minAgents": 0,
        "maxAgents": 0,
        "schedulerType": SCHEDULER_TYPES[scheduler.type],
        "schedulerFittingPolicy": f"FITTING_POLICY_{scheduler.fitting_policy.upper()}",
        "location": "",
        "imageId": "",
        "instanceType": "",
        "masterUrl": "",
        "masterCertName": "",
        "startupScript": "",
        "containerStartupScript": "",
        "agentDockerNetwork": "",
        "agentDockerRuntime": "",
        "agentDockerImage": "",
        "agentFluentImage": "",
        "maxIdleAgentPeriod": 0,
        "maxAgentStartingPeriod": 0,
        "clusterName": "",
        "resourceManagerMetadata": {},
        "details": details,
    }


async def _all(db: Db, settings: SettingsOf) -> list[dict[str, Any]]:
    """Every pool of the configuration, in its order. Only agents that are alive count."""
    cluster = settings.cluster
    async with db.tx() as conn:
        kinds = {
            row.name: row.worker_type
            for row in await conn.execute(sa.select(pools.c.name, pools.c.worker_type))
        }
        aux = {
            row.resource_pool: row.n
            for row in await conn.execute(
                sa.select(agents.c.resource_pool, sa.func.count().label("n"))
                .join(allocations, allocations.c.agent_id == agents.c.id)
                .where(_WITHOUT_SLOTS)
                .group_by(agents.c.resource_pool)
            )
        }
        members: dict[str, list[dict[str, Any]]] = {}
        for agent in await read_agents(conn, settings.agent_timeout_s):
            if agent["state"] != "STATE_ALIVE":
                continue
            for name in agent["resourcePools"]:
                members.setdefault(name, []).append(agent)
    return [
        pool_json(
            pool,
            kinds.get(pool.pool_name, ""),
            members.get(pool.pool_name, []),
            aux.get(pool.pool_name, 0),
            cluster,
        )
        for pool in cluster.pools
    ]


@router.get("/resource-pools")
async def list_resource_pools(
    user: ClusterReader, db: Db, settings: SettingsOf, offset: Offset = 0, limit: Limit = -1
) -> dict[str, Any]:
    """Every pool of the cluster configuration, with its scheduler and its agents' slots counted."""
    found = await _all(db, settings)
    start, end = window(len(found), offset, limit)
    return {
        "resourcePools": found[start:end],
        "pagination": pagination(len(found), offset, limit),
    }
