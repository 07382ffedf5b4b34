"""The service: the REST API that `det`, the SDK, training processes and agents talk to."""

from __future__ import annotations

import json
import sys

from determined_deployments.local import agent, configuration, databases, probe
from determined_deployments.local.component import Component
from determined_deployments.local.layout import Layout
from determined_deployments.local.state import HOST, ClusterState

NAME = "service"
MODULE = "determined_service"
# glibc would keep the 16 MB that checking a password takes, once in each thread's heap.
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


def settings(layout: Layout, state: ClusterState) -> dict[str, object]:
    """The content of ``service.json`` (see ``determined_service.base.settings``)."""
    return {
        "host": HOST,
        "port": state.master_port,
        "db_url": databases.url(state, "determined"),
        "mlflow_db_url": databases.mlflow_url(state),
        "prefect_api_url": state.prefect_api_url,
        "prefect_auth": state.prefect_auth,
        "data_dir": str(layout.root),
        "cluster_id": state.cluster_id,
        "cluster_name": state.cluster_name,
        "bootstrap_passwords": state.passwords,
        "agent_token": state.agent_token,
        "default_checkpoint_storage": {"type": "shared_fs", "host_path": str(layout.checkpoints)},
        "local_agents": agent.agent_ids(state),
    }


def component(layout: Layout, state: ClusterState, after: tuple[str, ...]) -> Component:
    """The service on ``state.master_port``; it waits by itself until Prefect answers."""
    config = layout.root / "service.json"
    given = settings(layout, state)
    files = {}
    text = configuration.kept(layout)
    if text is not None:
        given["cluster_config_file"] = str(layout.cluster_config)
        files[layout.cluster_config] = text
    files[config] = json.dumps(given, indent=2) + "\n"
    return Component(
        name=NAME,
        argv=(sys.executable, "-P", "-m", MODULE),
        env={"DET_SERVICE_CONFIG": str(config), **MEMORY},
        files=files,
        is_ready=lambda: _is_ready(state),
        url=state.master_url,
        port=state.master_port,
        after=after,
    )


def _is_ready(state: ClusterState) -> bool:
    # The second question fails at another cluster's service.
    return probe.is_ok(f"{state.master_url}/ready") and (
        probe.get(f"{state.master_url}/api/v1/me", token=state.agent_token) is not None
    )
