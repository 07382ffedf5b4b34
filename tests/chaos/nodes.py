"""The stand-in of Kubernetes that one agent's trials run on, and what happens to its pods, nodes and API."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import psutil

from determined.expconf.pod_spec import TRIAL_CONTAINER
from determined_deployments.agent.launchers.kubernetes import labels
from determined_tasks import start_ids
from tests.chaos.proxy import Proxy
from tests.kubernetes.standin.cluster import Cluster
from tests.kubernetes.standin.objects import Object, Refused, is_over
from tests.kubernetes.standin.running import StandIn

NAMESPACE, IMAGE = "default", "any"
NODES = ("node-a", "node-b")
NODE_CORES = "2"
PODS_S = 5.0
MARK = "CHAOS_OF"
"""A variable that tells the processes of pods from others of this machine."""
OURS = "determined"
"""With this begin the labels of the platform's objects."""


class Nodes:
    """``api``: the proxy between the agent and the API server."""

    def __init__(self, standin: StandIn) -> None:
        self._standin = standin
        self.do = standin.do
        self.go_away, self.come_back = standin.go_away, standin.come_back
        self._mark = secrets.token_hex(8)
        for name in NODES:
            self.add(name)
        config = json.loads(standin.kubeconfig.read_text())
        (cluster,) = config["clusters"]
        host, _, port = cluster["cluster"]["server"].rpartition("/")[2].partition(":")
        self.api = Proxy(host, int(port))
        self.api.start()
        cluster["cluster"]["server"] = self.api.url
        self.kubeconfig = standin.kubeconfig.with_name("kubeconfig-of-agent")
        self.kubeconfig.write_text(json.dumps(config))

    def add(self, name: str) -> None:
        self.do(lambda cluster: cluster.add_node(name, {"cpu": NODE_CORES}))

    def settings(self, master_url: str, storage: Path) -> dict[str, Any]:
        """Of its agent, besides those of all agents."""
        mark = {"name": TRIAL_CONTAINER, "env": [{"name": MARK, "value": self._mark}]}
        return {
            "launcher": "kubernetes",
            "container": {"images": {"cpu": IMAGE}, "master_url": master_url},
            # Its user is not an administrator, and names the storage of the experiments.
            "security": {"containers": {"host_paths": [str(storage)]}},
            "kubernetes": {
                "kubeconfig": str(self.kubeconfig),
                "namespace": NAMESPACE,
                "termination_grace": 5,
                "unplaced_after": 10,
                "pod_spec": {"spec": {"containers": [mark]}},
            },
        }

    def pods(self) -> list[Object]:
        """Those that a node has and that have not ended."""

        def runs(pod: Object) -> bool:
            return bool(pod["spec"].get("nodeName")) and not is_over(pod)

        return list(self.do(lambda cluster: cluster.store.select("pods", NAMESPACE, runs)))

    def left(self) -> list[str]:
        """The platform's Jobs, pods and Secrets."""
        return [
            f"{plural}/{thing['metadata']['name']}"
            for plural in ("jobs", "pods", "secrets")
            for thing in self.do(lambda c, plural=plural: c.store.select(plural, NAMESPACE))
            if any(label.startswith(OURS) for label in thing["metadata"].get("labels") or {})
        ]

    def processes(self) -> dict[int, dict[str, str]]:
        """What runs in pods: ids and environments as they were when the supervisor began."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                env = process.environ()
                if env.get(MARK) == self._mark:
                    found[process.pid] = env
        return found

    def training(self, allocation_id: str | None = None) -> list[psutil.Process]:
        """The training processes in pods, which are forks of their supervisors; with ``allocation_id`` of
        this leg."""
        uids = {
            pod["metadata"]["uid"]
            for pod in self.pods()
            if allocation_id in (None, pod["metadata"]["labels"].get(labels.ALLOCATION))
        }
        processes, found = self.processes(), []
        for pid, env in processes.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.ppid() in processes and env.get(start_ids.VARIABLE) in uids:
                    found.append(process)
        return found

    def to_pod(self, random: Random, act: Callable[[Cluster, Object], Any]) -> bool:
        """Waits for pods, with a limit, and does it to one of them. False: it is gone, or there is none."""
        deadline = time.monotonic() + PODS_S
        while not (pods := self.pods()):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        pod = random.choice(pods)
        try:
            return self.do(lambda cluster: act(cluster, pod)) is not False
        except Refused:
            return False
