"""`python -m benchmarks.training.launch`: from the command to the first step of a trial of two processes.

One small DistributedDataParallel step over Gloo. In one run, turn by turn:

plain       two `python` processes with the environment that torchrun sets
torchrun    torch's launcher
ours        `python -m determined.launch.torch_distributed`, off the cluster
warm        the same launched as on a cluster: from the agent's fork server
upstream    the published client's launcher, if `/work/upstream/.venv` (or UPSTREAM_PYTHON) has it

Wall time until both processes have made their step, and the CPU time of all processes to their end.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from determined_deployments.agent.launchers.fork_server.learning import TRIAL
from determined_deployments.agent.launchers.fork_server.plans import TRIAL_MODULES, TRIAL_OPTIONAL
from determined_deployments.agent.launchers.fork_server.server import ForkServer, ZygotePlan
from determined_deployments.agent.launchers.fork_server.zygote import ROOT
from determined_tasks.entrypoint import StartMethod
from determined_tasks.process import start

ROUNDS = 3
UPSTREAM = Path(os.environ.get("UPSTREAM_PYTHON", "/work/upstream/.venv/bin/python"))
MODULE = "determined.launch.torch_distributed"
OPTIONS = ["--nproc_per_node=2"]
# Determined's launcher runs on a cluster only: it is told that it does.
AS_ON_CLUSTER = """
import sys
import determined as det
from determined.launch import torch_distributed
info = det.ClusterInfo(
    "http://127.0.0.1:1", "c", "a", [0, 1], "t", "al", "s", "TRIAL",
    rendezvous_info=det.RendezvousInfo(["127.0.0.1"], 0, [2]),
    resources_info=det.ResourcesInfo([]),
    trial_info=det.TrialInfo(1, 1, 1, {}, {"resources": {"slots_per_trial": 2}}, 0, 1, False, None),
)
det.get_cluster_info = lambda: info
sys.exit(torch_distributed.main([], sys.argv[1:]))
"""
SCRIPT = """
import os, pathlib, sys, time
import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(8, 64)).sum().backward()
optimizer.step()
pathlib.Path(sys.argv[1], "rank-" + os.environ["RANK"]).write_text(repr(time.time()))
torch.distributed.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def plain(script: Path, out: Path) -> None:
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(out)],
            env={**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    assert [process.wait() for process in processes] == [0, 0]


def by(*launcher: str) -> Callable[[Path, Path], None]:
    """A launcher that takes the script and its arguments."""

    def launch(script: Path, out: Path) -> None:
        # The launcher's Python first: upstream's calls `python3` and programs of its environment.
        path = f"{Path(launcher[0]).parent}{os.pathsep}{os.environ['PATH']}"
        command = [*launcher, str(script), str(out)]
        done = subprocess.run(
            command, stderr=subprocess.PIPE, cwd=out, env={**os.environ, "PATH": path}
        )
        if done.returncode:
            raise SystemExit(f"{launcher} failed:\n{done.stderr.decode()}")

    return launch


def become(order: dict[str, Any]) -> int:
    """In a fork of the fork server: starts the training process as a leg's supervisor does."""
    user = start(
        StartMethod("module", order["argv"]),
        env=dict(os.environ),
        workdir=Path(order["folder"]),
        single_threaded=True,
        base_path=order["base_path"],
    )
    while not user.reap():
        time.sleep(0.01)
    assert user.status is not None
    return os.waitstatus_to_exitcode(user.status)


async def warm(server: ForkServer, script: Path, out: Path) -> None:
    argv = [MODULE, *OPTIONS, "--", "python3", str(script), str(out)]
    order = {"argv": argv, "folder": str(out)}
    child = await server.fork([TRIAL], "benchmarks.training.launch:become", order)
    assert await child.ended == 0


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def measure(upstream: bool) -> dict[str, list[tuple[float, float]]]:
    """(wall to the first step, CPU in all) per launch; the fork server's forks are not our children, so
    their CPU is NaN."""
    ways: dict[str, Callable[[Path, Path], None]] = {
        "plain": plain,
        "torchrun": by(sys.executable, "-m", "torch.distributed.run", *OPTIONS),
        "ours": by(sys.executable, "-m", MODULE, *OPTIONS, "--"),
    }
    if upstream:
        ways["upstream"] = by(str(UPSTREAM), "-c", AS_ON_CLUSTER, str(UPSTREAM))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in [*ways, "warm"]}
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(SCRIPT)
        async with ForkServer({**os.environ, "PYTHONPATH": str(root)}) as server:
            server.want(ZygotePlan(TRIAL, ROOT, TRIAL_MODULES, TRIAL_OPTIONAL))
            await server.wait_ready([TRIAL])
            for number in range(ROUNDS + 1):
                for way in found:
                    out = folder / f"{way}-{number}"
                    out.mkdir()
                    cpu, begin = _cpu(), time.time()
                    if way == "warm":
                        await warm(server, script, out)
                        cpu = float("nan")
                    else:
                        await asyncio.to_thread(ways[way], script, out)
                        cpu = _cpu() - cpu
                    steps = [float((out / f"rank-{rank}").read_text()) for rank in range(2)]
                    if number:  # the first round reads files from the disk
                        found[way].append((max(steps) - begin, cpu))
    return found


def main() -> None:
    found = asyncio.run(measure(UPSTREAM.exists()))
    torchrun = statistics.median(wall for wall, _ in found["torchrun"])
    for way, times in found.items():
        walls = sorted(wall for wall, _ in times)
        wall = statistics.median(walls)
        cpu = statistics.median(used for _, used in times)
        print(
            f"launch, {way:9} first step after {wall:5.2f} s ({walls[0]:.2f}-{walls[-1]:.2f}), "
            f"{wall / torchrun:4.2f} of torchrun's; CPU {cpu:5.2f} s"
        )


if __name__ == "__main__":
    main()
