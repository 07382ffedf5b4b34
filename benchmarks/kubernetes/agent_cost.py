"""200 trivial trials on 8 slots of an agent on Kubernetes: the agent's CPU per trial.

`python -m benchmarks.kubernetes.agent_cost [TRIALS]`. Pods run on this machine, by the tests' stand-in.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.trivial_trials import CONFIG, SCRIPT
from tests.kubernetes.agents import POOL, POOLS, Agent
from tests.kubernetes.conftest import Target
from tests.kubernetes.standin.running import running
from tests.local_cluster import LocalCluster

TRIALS, SLOTS = 200, 8
HOUR = 3600.0


def cpu(root: psutil.Process) -> tuple[float, float]:
    """Seconds of the agent's process, and of all that it has started."""
    own = root.cpu_times()
    others = own.children_user + own.children_system
    for child in root.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            others += sum(child.cpu_times()[:4])
    return own.user + own.system, others


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else TRIALS
    with (
        running("1.33") as standin,
        LocalCluster.running(config=POOLS) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        standin.do(lambda made: made.add_node("node", {"cpu": str(SLOTS)}))
        target = Target(standin.kubeconfig, "default", "any", standin)
        agent = Agent(cluster, target, "bench", max_slots=SLOTS)
        process = psutil.Process(agent.process.pid)
        before, begin = cpu(process), time.monotonic()
        requests = standin.server.requests.total()
        config = CONFIG % (trials, SLOTS) + f"resources: {{resource_pool: {POOL}}}\n"
        experiment = cluster.submit(Path(folder), config, script_py=SCRIPT)
        state = cluster.wait(experiment, HOUR)
        seconds, after = time.monotonic() - begin, cpu(process)
        requests = standin.server.requests.total() - requests
        agent.stop()
    assert state == "COMPLETED", state
    own, others = (
        (late - early) / trials * 1000 for early, late in zip(before, after, strict=True)
    )
    print(f"{trials} trials on {SLOTS} slots in {seconds:.0f} s, load {os.getloadavg()[0]:.1f}")
    print(
        f"  CPU per trial: {own:.0f} ms in the agent, {others:.0f} ms in its forks (the search's flow)"
    )
    print(f"  requests per trial: {requests / trials:.1f}")


if __name__ == "__main__":
    main()
