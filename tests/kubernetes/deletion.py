"""Ends of Jobs and pods that come from people or from the cluster, on any cluster."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.kubernetes.conftest import Target


def delete(target: Target, plural: str, name: str) -> None:
    if target.standin is None:
        target.kubectl("delete", plural, name, "--wait=false")
        return

    def gone(cluster: Any) -> None:
        found = cluster.store.get(plural, target.namespace, name)
        cluster.deletion.delete(plural, found, "Background", None)

    target.standin.do(gone)


def evict(target: Target, pod: dict[str, Any]) -> None:
    """By the API's eviction, as `kubectl drain` does it."""
    if target.standin is not None:
        words = ("EvictionByEvictionAPI", "Eviction API: evicting")
        target.standin.do(lambda cluster: cluster.disrupt(pod, *words))
        return
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1beta1", "kind": "Eviction"}
    body |= {"metadata": {"name": name, "namespace": target.namespace}}
    path = f"/api/v1/namespaces/{target.namespace}/pods/{name}/eviction"
    subprocess.run(
        ["kubectl", "--kubeconfig", str(target.kubeconfig), "create", "--raw", path, "-f", "-"],
        input=json.dumps(body),
        text=True,
        check=True,
        capture_output=True,
    )
