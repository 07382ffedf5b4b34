"""What the cluster configuration gives the containers of all tasks."""

from __future__ import annotations

from determined.common.cluster_config import ClusterConfig
from determined_service.lifecycle.kinds.base import granted


def test_pod_specs_of_the_cluster_are_given_to_all_tasks() -> None:
    context = {"capabilities": {"add": ["NET_ADMIN"]}}
    pod = {
        "hostNetwork": True,
        "volumes": [{"name": "v", "hostPath": {"path": "/nfs"}}],
        "containers": [{"name": "side", "securityContext": context}],
    }
    cluster = ClusterConfig.model_validate(
        {"task_container_defaults": {"gpu_pod_spec": {"spec": pod}}}
    )
    found = granted(cluster, None, "default", is_administrator=False)
    assert found.to_json() == {
        "administrator": False,
        "capabilities": ["NET_ADMIN"],
        "devices": [],
        "host_paths": ["/nfs"],
        "pod_fields": ["hostNetwork"],
    }
