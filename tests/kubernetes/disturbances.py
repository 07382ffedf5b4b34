"""What people do to a cluster and its pods, on any cluster."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import Any

from tests.kubernetes.conftest import NODES, Target
from tests.waiting import until


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


@contextlib.contextmanager
def no_more(target: Target, counted: str) -> Iterator[None]:
    """A quota of 0 in the namespace, within the block."""
    if target.standin is not None:
        quotas = target.standin.do(lambda cluster: cluster.admission.quotas)
        quotas[target.namespace] = {counted: 0}
        yield
        quotas.clear()
        return
    target.kubectl("create", "quota", "none", f"--hard={counted}=0")
    read = ("get", "quota", "none", "--output", "jsonpath={.status.hard}")
    until("the quota is in force", lambda: target.kubectl(*read))
    yield
    target.kubectl("delete", "quota", "none")


@contextlib.contextmanager
def fast_disks(target: Target) -> Iterator[None]:
    """Nodes with the label disk=fast, within the block."""
    if target.standin is not None:
        labels = {"disk": "fast", "kubernetes.io/hostname": "node-fast"}
        target.standin.do(lambda c: c.add_node("node-fast", {"cpu": "2"}, labels=labels))
        try:
            yield
        finally:
            target.standin.do(lambda cluster: cluster.remove_node("node-fast"))
        return
    target.kubectl("label", "nodes", "--selector", NODES, "disk=fast")
    try:
        yield
    finally:
        target.kubectl("label", "nodes", "--selector", NODES, "disk-")
