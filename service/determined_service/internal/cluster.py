"""Routes for `det deploy local cluster-up` and the cluster configuration."""

from __future__ import annotations

from determined.common.wire import paths
from determined.common.wire.cluster import ProposedConfig
from determined_service.access.dependencies import AgentAuth
from determined_service.lifecycle import configuration
from determined_service.web.router import Router
from determined_service.web.state import Db, SettingsOf

router = Router("Cluster")


@router.get(paths.CLUSTER_CONFIG)
async def cluster_config(agent: AgentAuth, settings: SettingsOf) -> dict[str, str]:
    """``refusal``: why this process has not put its configuration file into force; empty if it has."""
    return {"refusal": settings.cluster_refusal}


@router.post(paths.CLUSTER_CONFIG)
async def check_cluster_config(
    given: ProposedConfig, agent: AgentAuth, db: Db, settings: SettingsOf
) -> dict[str, str]:
    """``refusal``: why the service would not put the proposed configuration into force; empty if it would."""
    return {"refusal": await configuration.objection(db, given.text, settings)}
