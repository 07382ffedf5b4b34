"""A cluster for the suite: the one that KUBECONFIG names, else the stand-in.

With KUBECONFIG, ``DET_TEST_IMAGE`` names an image with our packages that the nodes have or can pull. Where
all nodes are this machine (``DET_TEST_NODES_ARE_HERE=1``), tests also look at what pods do to its files.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.standin.running import StandIn, running

ROOT = Path(__file__).parents[2]
NODES_ARE_HERE = bool(os.environ.get("DET_TEST_NODES_ARE_HERE"))
IMAGE = "DET_TEST_IMAGE"
PACKAGES = ("harness", "searchers", "registry", "service", "tasks", "flows", "deployments")


@dataclass(frozen=True)
class Target:
    """Where an agent is told to run its pods. ``pod_spec``: what its pods need there."""

    kubeconfig: Path
    namespace: str
    image: str
    pod_spec: dict[str, Any] = field(default_factory=dict)
    standin: StandIn | None = None

    def settings(self, **more: Any) -> dict[str, Any]:
        """``kubernetes`` in an agent's settings."""
        given: dict[str, Any] = {
            "kubeconfig": str(self.kubeconfig),
            "namespace": self.namespace,
            "termination_grace": 5,
            **more,
        }
        return {**given, "pod_spec": self.pod_spec} if self.pod_spec else given


def _of_kubectl(kubeconfig: str, *command: str) -> str:
    done = subprocess.run(
        ["kubectl", "--kubeconfig", kubeconfig, *command],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def _our_code(folder: Path) -> dict[str, Any]:
    """Shows pods on this machine the tests' folder and this working tree, whatever the image has."""
    mounts = [("tests", folder), ("code", ROOT)]
    path = ":".join(str(ROOT / package) for package in PACKAGES)
    container = {
        "name": "determined-container",
        "env": [{"name": "PYTHONPATH", "value": path}],
        "volumeMounts": [{"name": name, "mountPath": str(where)} for name, where in mounts],
    }
    volumes = [{"name": name, "hostPath": {"path": str(where)}} for name, where in mounts]
    return {"spec": {"hostNetwork": True, "containers": [container], "volumes": volumes}}


@pytest.fixture(scope="session", params=["1.33", "1.20"])
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    kubeconfig = os.environ.get("KUBECONFIG")
    if kubeconfig is None:
        with running(request.param) as standin:
            for name in ("node-a", "node-b"):
                standin.do(lambda cluster, name=name: cluster.add_node(name))
            yield Target(standin.kubeconfig, "default", "any", standin=standin)
        return
    if request.param != "1.33":
        pytest.skip("versions are the stand-in's; the cluster of KUBECONFIG has its own")
    if IMAGE not in os.environ or shutil.which("kubectl") is None:
        pytest.skip(
            f"with KUBECONFIG the suite needs kubectl and {IMAGE}, an image with our packages"
        )
    namespace = f"det-test-{secrets.token_hex(3)}"
    _of_kubectl(kubeconfig, "create", "namespace", namespace)
    spec = _our_code(tmp_path_factory.getbasetemp()) if NODES_ARE_HERE else {}
    try:
        yield Target(Path(kubeconfig), namespace, os.environ[IMAGE], spec)
    finally:
        _of_kubectl(kubeconfig, "delete", "namespace", namespace, "--wait=true", "--timeout=120s")
