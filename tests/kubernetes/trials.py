"""Trials whose first leg waits for its end, and whose next one ends by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kubernetes.agents import POOL
from tests.kubernetes.conftest import Target
from tests.local_cluster import LocalCluster
from tests.waiting import until

SCRIPT = """
import os, time, determined as det
with det.core.init() as core:
    print("begun", flush=True)
    is_first = os.environ["DET_ALLOCATION_ID"].rpartition(".")[2] == "1"
    while "EATS" in os.environ:
        kept = [*globals().get("kept", ()), b"x" * 50_000_000]
    while is_first:
        if core.preempt.should_preempt():
            raise SystemExit
        time.sleep(0.05)
    core.train.report_validation_metrics(1, {"loss": 1.0})
"""
CONFIG = f"""
name: truth
entrypoint: python3 script.py
resources: {{resource_pool: {POOL}}}
searcher: {{name: single, metric: loss, max_length: {{batches: 1}}}}
max_restarts: 0
"""


class Truth:
    """One trial: what happens to its pods, and what its user reads about it."""

    def __init__(self, cluster: LocalCluster, target: Target, folder: Path, more: str = "") -> None:
        self._cluster = cluster
        self._target = target
        self._before = {pod["metadata"]["uid"] for pod in target.list("pods")}
        self.experiment = cluster.submit(folder, CONFIG + more, script_py=SCRIPT)

    def begun(self) -> dict[str, Any]:
        """The pod of the leg, once its script runs."""
        self._cluster.wait_for_lines(self.experiment, "begun")
        return self.pod()

    def pod(self) -> dict[str, Any]:
        def new() -> dict[str, Any] | None:
            pods = self._target.list("pods")
            return next((pod for pod in pods if pod["metadata"]["uid"] not in self._before), None)

        return until("the leg's pod", new, show=self.log)

    def ended(self, state: str = "COMPLETED") -> str:
        """What `det trial describe` prints at the end, which has to leave nothing in the namespace."""
        assert self._cluster.wait(self.experiment) == state, self.log()
        until("nothing is left", self._target.left, equals=[])
        return self.described()

    def kill(self) -> None:
        self._cluster.det("experiment", "kill", str(self.experiment))

    def described(self) -> str:
        (trial,) = self._cluster.trials(self.experiment)
        return " ".join(self._cluster.det("trial", "describe", str(trial["id"])).stdout.split())

    def log(self) -> str:
        return self._cluster.det("experiment", "logs", str(self.experiment), check=False).stdout

    def states(self) -> list[str]:
        """Of the trial's legs."""
        (trial,) = self._cluster.trials(self.experiment)
        found = self._cluster.session().get(f"/api/v1/trials/{trial['id']}")["trial"]["legs"]
        return [leg["state"].removeprefix("STATE_") for leg in found]

    def restarts(self) -> int:
        (trial,) = self._cluster.trials(self.experiment)
        return int(trial["restarts"])
