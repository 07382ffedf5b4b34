"""What people do to a cluster and its pods, on any cluster."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from tests.kubernetes import served
from tests.kubernetes.conftest import AWAY_S, DISRUPT, NODES, Target
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
def fast_disks(target: Target, nodes: int = 1) -> Iterator[None]:
    """That many nodes have the label disk=fast, within the block."""
    if target.standin is not None:
        do = target.standin.do
        names = [f"node-fast-{number}" for number in range(nodes)]
        for name in names:
            labels = {"disk": "fast", "kubernetes.io/hostname": name}
            do(functools.partial(_add_node, name=name, labels=labels))
        try:
            yield
        finally:
            for name in names:
                do(functools.partial(_remove_node, name=name))
        return
    found = json.loads(target.kubectl("get", "nodes", "--selector", NODES, "--output", "json"))
    names = [one["metadata"]["name"] for one in found["items"]][:nodes]
    target.kubectl("label", "nodes", *names, "disk=fast")
    try:
        yield
    finally:
        target.kubectl("label", "nodes", *names, "disk-")


def _add_node(cluster: Any, *, name: str, labels: dict[str, str]) -> None:
    cluster.add_node(name, {"cpu": "2"}, labels=labels)


def _remove_node(cluster: Any, *, name: str) -> Any:
    return cluster.remove_node(name)


def _disrupt(*what: str) -> None:
    assert DISRUPT is not None
    subprocess.run([DISRUPT, *what], check=True)


@contextlib.contextmanager
def node_lost(target: Target, name: str) -> Iterator[None]:
    """A node that does not answer, and whose pods Kubernetes has given up, within the block."""
    if target.standin is None:
        _disrupt("node-lost", name)
    else:
        target.standin.do(lambda cluster: cluster.lose_node(name, evict=True))
    try:
        yield
    finally:
        if target.standin is None:
            _disrupt("node-back", name)
        else:
            target.standin.do(lambda cluster: cluster.return_node(name))


@contextlib.contextmanager
def node_gone(target: Target, name: str) -> Iterator[None]:
    """A node that is removed from the cluster together with its machine, within the block."""
    if target.standin is None:
        _disrupt("node-lost", name)
        target.kubectl("delete", "node", name)
    else:
        target.standin.do(lambda cluster: cluster.remove_node(name))
    try:
        yield
    finally:
        if target.standin is None:
            _disrupt("node-back", name)
        else:
            target.standin.do(lambda cluster: cluster.add_node(name, {"cpu": "2"}))


@contextlib.contextmanager
def node_short(target: Target, pod: dict[str, Any]) -> Iterator[None]:
    """The node of ``pod`` runs short of memory and evicts it; within the block it stays short."""
    name = pod["spec"]["nodeName"]
    if target.standin is not None:
        target.standin.do(lambda cluster: cluster.evict(pod))
        yield
        return
    _disrupt("node-short", name)
    try:
        yield
    finally:
        _disrupt("node-back", name)


@contextlib.contextmanager
def api_away(target: Target) -> Iterator[None]:
    """No API server within the block, and on a real cluster :data:`AWAY_S` longer."""
    if target.standin is None:
        _disrupt("api-away")
    else:
        target.standin.go_away()
    try:
        yield
        time.sleep(AWAY_S if target.standin is None else 0)
    finally:
        if target.standin is None:
            _disrupt("api-back")
        else:
            target.standin.come_back()


PREEMPTOR = "det-test-preemptor"


@contextlib.contextmanager
def preempted(target: Target, pod: dict[str, Any]) -> Iterator[None]:
    """A pod of higher priority that takes the room of ``pod``, within the block."""
    if target.standin is not None:
        target.standin.do(lambda cluster: cluster.preempt(pod))
        yield
        return
    node = pod["spec"]["nodeName"]
    room = json.loads(target.kubectl("get", "node", node, "--output", "json"))
    cores = int(room["status"]["allocatable"]["cpu"])
    container = {"name": "c", "image": target.image, "command": ["sleep", "600"]}
    container["resources"] = {"requests": {"cpu": str(cores)}}
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": PREEMPTOR}}
    made["spec"] = {
        "priorityClassName": PREEMPTOR,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    target.apply({**kind, "metadata": {"name": PREEMPTOR}})
    try:
        target.apply(made)
        yield
    finally:
        target.kubectl("delete", "pod", PREEMPTOR, "--grace-period=0", "--force")
        target.kubectl("delete", "priorityclass", PREEMPTOR)


@contextlib.contextmanager
def webhook(target: Target, plural: str, words: str) -> Iterator[None]:
    """An admission webhook that refuses all new Jobs or pods of the namespace, within the block. Of a real
    cluster the API server has to run on this machine."""
    if target.standin is not None:
        target.standin.do(lambda cluster: cluster.admission.webhooks.update({plural: words}))
        try:
            yield
        finally:
            target.standin.do(lambda cluster: cluster.admission.webhooks.clear())
        return
    name, kind = f"{target.namespace}.example.test", "ValidatingWebhookConfiguration"
    rule = {"apiGroups": ["", "batch"], "apiVersions": ["v1"], "operations": ["CREATE"]}
    with served.webhook(words) as (url, certificate):
        hook = {
            "name": name,
            "clientConfig": {"url": url, "caBundle": base64.b64encode(certificate).decode()},
            "rules": [{**rule, "resources": [plural]}],
            "namespaceSelector": {"matchLabels": {"det-test": target.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        made = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind}
        target.kubectl("label", "namespace", target.namespace, f"det-test={target.namespace}")
        target.apply({**made, "metadata": {"name": name}, "webhooks": [hook]})
        try:
            until("the API server heeds the webhook", lambda: words in _tried(target, plural))
            yield
        finally:
            target.kubectl("delete", kind, name)
            target.kubectl("label", "namespace", target.namespace, "det-test-")


def _tried(target: Target, plural: str) -> str:
    """What the API server says to a new object of the kind, which it does not make."""
    what = ["job", "tried"] if plural == "jobs" else ["run", "tried", "--restart=Never"]
    verb = ["create", *what] if plural == "jobs" else what
    command = [*verb, f"--image={target.image}", "--dry-run=server"]
    base = ["kubectl", "--kubeconfig", str(target.kubeconfig), "--namespace", target.namespace]
    return subprocess.run([*base, *command], capture_output=True, text=True).stderr


@contextlib.contextmanager
def image(target: Target, state: str) -> Iterator[str]:
    """An image that cannot be pulled, within the block: ``missing``, ``denied``, or its registry is
    ``away``. Of a real cluster the nodes have to be this machine, but for ``away``."""
    if target.standin is not None:
        name = "registry.test/team/image:1"
        images = target.standin.do(lambda cluster: cluster.images)
        images.states[name] = state
        try:
            yield name
        finally:
            images.states.clear()
    elif state == "away":
        yield "registry.invalid/team/image:1"
    else:
        with served.registry(state) as address:
            yield f"{address}/team/image:1"


@contextlib.contextmanager
def namespace(target: Target) -> Iterator[None]:
    """The namespace of ``target`` exists within the block."""
    if target.standin is None:
        target.kubectl("create", "namespace", target.namespace)
    else:
        target.standin.do(lambda cluster: cluster.add_namespace(target.namespace))
    try:
        yield
    finally:
        if target.standin is None:
            target.kubectl("delete", "namespace", target.namespace, "--timeout=120s")
        else:
            standin, name = target.standin, target.namespace
            standin.do(lambda cluster: _delete_namespace(cluster, name))
            find = ("namespaces", "", name)
            until("it is gone", lambda: not standin.do(lambda c: c.store.find(*find)))


def _delete_namespace(cluster: Any, name: str) -> None:
    found = cluster.store.get("namespaces", "", name)
    cluster.deletion.delete("namespaces", found, "Background", None)
