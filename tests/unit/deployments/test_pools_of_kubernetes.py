"""A local cluster leaves pools on Kubernetes to their own agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from determined.common.cluster_config import read_text
from determined_deployments.local import configuration, up
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.layout import Layout
from determined_deployments.local.state import ClusterState
from tests.unit.deployments.test_plan import Notes


def test_no_agent_is_started_for_pools_on_kubernetes() -> None:
    config, _ = read_text(
        "resource_pools: [{pool_name: default}, {pool_name: small}]\n"
        "additional_resource_managers:\n"
        "- {resource_manager: {type: kubernetes}, resource_pools: [{pool_name: k8s}]}\n"
    )
    assert up._other_pools(config, ClusterState()) == ["small"]


def test_the_first_pool_of_a_local_cluster_is_not_on_kubernetes(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path / "data")
    layout.create()
    given = tmp_path / "given.yaml"
    given.write_text("resource_manager: {type: kubernetes}\n")
    with pytest.raises(ClusterError, match="below additional_resource_managers"):
        configuration.choose(layout, str(given), Notes())
    assert configuration.kept(layout) is None
