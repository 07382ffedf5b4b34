"""Agents with the launcher kubernetes beside a local cluster of ours."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

from tests.kubernetes.conftest import Target
from tests.local_cluster import LocalCluster
from tests.waiting import TIMEOUT_S, until

POOL = "kube"
POOLS = "resource_pools: [{pool_name: default}, {pool_name: kube}]\n"
OF_OTHERS = ("slots", "limits")
"""Settings of the local agent that an agent on Kubernetes may not have."""


class Agent:
    """An agent process. ``kubernetes``: settings besides the target's."""

    def __init__(self, cluster: LocalCluster, target: Target, name: str, **kubernetes: Any) -> None:
        self.name = name
        self._cluster = cluster
        given = json.loads((cluster.data_dir / "agent.json").read_text())
        settings = {key: value for key, value in given.items() if key not in OF_OTHERS}
        settings |= {
            "agent_id": name,
            "resource_pool": POOL,
            "work_dir": str(cluster.data_dir / "agents" / name),
            "launcher": "kubernetes",
            "container": {"images": {"cpu": target.image}, "master_url": settings["master_url"]},
            "kubernetes": target.settings(cluster.data_dir, **kubernetes),
        }
        self._settings = cluster.data_dir / f"{name}.json"
        self._settings.write_text(json.dumps(settings))
        self._log = cluster.data_dir / f"{name}.log"
        self.start()

    def start(self) -> None:
        seen = self.log().count("registered as")
        # The settings alone name the cluster.
        env = {name: value for name, value in self._cluster.env.items() if name != "KUBECONFIG"}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "determined_deployments.agent"],
                env={**env, "DET_AGENT_CONFIG": str(self._settings)},
                stdout=log,
                stderr=log,
            )
        until(
            f"{self.name} is registered",
            lambda: self.log().count("registered as") > seen or self.process.poll() is not None,
            show=self.log,
        )
        assert self.process.poll() is None, self.log()

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(TIMEOUT_S)


def reasons(cluster: LocalCluster, trial_id: int) -> str:
    """What `det trial describe` prints."""
    return cluster.det("trial", "describe", str(trial_id)).stdout
