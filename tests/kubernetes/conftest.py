"""A cluster for the suite: the one that KUBECONFIG names, else the stand-in.

With KUBECONFIG, ``DET_TEST_IMAGE`` names an image with our packages and JupyterLab that the nodes have or
can pull. Where all nodes are this machine (``DET_TEST_NODES_ARE_HERE=1``), pods see this working tree and the
tests' files.
``DET_TEST_NODES=KEY=VALUE``: only nodes with this label are used, also if they have a taint of that key.
``DET_TEST_DISRUPT``: a program that takes parts of the cluster away: ``node-lost NAME`` ends a node's kubelet
and the processes of its pods, ``node-short NAME`` has its kubelet evict for want of memory, ``node-back
NAME`` undoes both, ``api-away`` and ``api-back`` do so with the API server. ``DET_TEST_AWAY_S``: for how many
seconds that is away.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.standin.running import StandIn, running

ROOT = Path(__file__).parents[2]
KUBECONFIG = os.environ.get("KUBECONFIG")
IMAGE = os.environ.get("DET_TEST_IMAGE")
NODES = os.environ.get("DET_TEST_NODES", "")
NODES_ARE_HERE = bool(os.environ.get("DET_TEST_NODES_ARE_HERE"))
DISRUPT = os.environ.get("DET_TEST_DISRUPT")
AWAY_S = float(os.environ.get("DET_TEST_AWAY_S", "0"))
VERSIONS = ["1.33", "1.20"] if KUBECONFIG is None else ["its own"]
"""Of Kubernetes."""
NEWEST = VERSIONS[0]
PACKAGES = ("harness", "searchers", "registry", "service", "tasks", "flows", "deployments")


@dataclass(frozen=True)
class Target:
    """Where agents run their pods. ``standin``: None for a real cluster."""

    kubeconfig: Path
    namespace: str
    image: str
    standin: StandIn | None = None

    def settings(self, *folders: Path, **more: Any) -> dict[str, Any]:
        """``kubernetes`` in an agent's settings. ``folders``: of this machine, which pods have to see."""
        given: dict[str, Any] = {
            "kubeconfig": str(self.kubeconfig),
            "namespace": self.namespace,
            "termination_grace": 10,
            **more,
        }
        if self.standin is not None:
            return given
        spec = _seeing(*folders) if NODES_ARE_HERE else {}
        if NODES:
            key, _, value = NODES.partition("=")
            given["node_selector"] = {key: value}
            spec["tolerations"] = tolerations()
        return {**given, "pod_spec": {"spec": spec}} if spec else given

    def kubectl(self, *command: str) -> str:
        return _kubectl(self.kubeconfig, "--namespace", self.namespace, *command)

    def apply(self, thing: dict[str, Any]) -> None:
        """Makes or changes an object of a real cluster."""
        _kubectl(
            self.kubeconfig,
            "--namespace",
            self.namespace,
            "apply",
            "-f",
            "-",
            given=json.dumps(thing),
        )

    def list(self, plural: str) -> list[dict[str, Any]]:
        """The objects in the namespace."""
        if self.standin is not None:
            return list(self.standin.do(lambda c: c.store.select(plural, self.namespace)))
        return list(json.loads(self.kubectl("get", plural, "--output", "json"))["items"])

    def left(self) -> list[str]:
        """The Jobs, pods and Secrets in the namespace that are ours."""
        return [
            f"{plural}/{thing['metadata']['name']}"
            for plural in ("jobs", "pods", "secrets")
            for thing in self.list(plural)
            if any(key.startswith("determined") for key in thing["metadata"].get("labels") or {})
        ]


def tolerations(*more: dict[str, Any]) -> list[dict[str, Any]]:
    """Of pods on the nodes of ``DET_TEST_NODES``."""
    own = [{"key": NODES.partition("=")[0], "operator": "Exists"}] if NODES else []
    return [*own, *({"operator": "Exists", **one} for one in more)]


def _kubectl(kubeconfig: Path, *command: str, given: str | None = None) -> str:
    done = subprocess.run(
        ["kubectl", "--kubeconfig", str(kubeconfig), *command],
        input=given,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"kubectl {' '.join(command)}: {done.stderr}"
    return done.stdout


def _seeing(*folders: Path) -> dict[str, Any]:
    """For nodes that are this machine: its network, the working tree and the folders."""
    mounts = [(f"here-{number}", path) for number, path in enumerate((ROOT, *folders))]
    path = ":".join(str(ROOT / package) for package in PACKAGES)
    container = {
        "name": "determined-container",
        "env": [{"name": "PYTHONPATH", "value": path}],
        "volumeMounts": [{"name": name, "mountPath": str(where)} for name, where in mounts],
    }
    volumes = [{"name": name, "hostPath": {"path": str(where)}} for name, where in mounts]
    return {"hostNetwork": True, "containers": [container], "volumes": volumes}


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Two nodes at least. The parameter is one of :data:`VERSIONS`."""
    if KUBECONFIG is None:
        with running(getattr(request, "param", NEWEST)) as standin:
            for name in ("node-a", "node-b"):
                standin.do(lambda cluster, name=name: cluster.add_node(name, {"cpu": "2"}))
            yield Target(standin.kubeconfig, "default", "any", standin)
        return
    if IMAGE is None or shutil.which("kubectl") is None:
        pytest.skip(
            "with KUBECONFIG the suite needs kubectl, and DET_TEST_IMAGE, an image with our packages"
        )
    namespace, kubeconfig = f"det-test-{secrets.token_hex(3)}", Path(KUBECONFIG)
    _kubectl(kubeconfig, "create", "namespace", namespace)
    try:
        yield Target(kubeconfig, namespace, IMAGE)
    finally:
        _kubectl(kubeconfig, "delete", "namespace", namespace, "--wait=true", "--timeout=120s")
