"""An agent with 1,000 pods of the stand-in: its memory, its watches and its requests.

`python -m benchmarks.kubernetes.many_pods [PODS]`. The pods run nothing: the agent's side is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from determined.common.wire.legs import LegSpec
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.base import Call, Job
from determined_deployments.agent.launchers.kubernetes.launcher import KubernetesLauncher
from determined_deployments.agent.launchers.kubernetes.placed import Placed
from determined_deployments.agent.launchers.testing_agent import no_model_definition
from determined_tasks.supervision import SUPERVISE
from tests.kubernetes.standin.running import running
from tests.programs.legs.fake_service import spec

PODS = 1000
QUIET_SECONDS = 20.0


async def agent(kubeconfig: str, pods: int, folder: Path) -> None:
    """Prints a line of JSON at each stage, and waits for a line of input before the next."""
    service = "http://127.0.0.1:1"
    config = AgentConfig.model_validate(
        {
            "agent_id": "many",
            "master_url": service,
            "agent_token": "secret",
            "work_dir": folder,
            "launcher": "kubernetes",
            "container": {"master_url": service},
            "kubernetes": {
                "kubeconfig": kubeconfig,
                "max_slots": pods,
                "requests_per_second": 1000,
            },
        }
    )
    async with KubernetesLauncher(config, no_model_definition) as launcher:
        await launcher.adopt()
        await launcher.ready()
        await _tell("none")
        begin = time.monotonic()
        legs = []
        for number in range(pods):
            order = spec(f"7.{number}.1")
            call = Call(SUPERVISE, {"spec": order, "place": {"work_dir": "/run/determined"}})
            leg = LegSpec.from_json(order)
            legs.append(await launcher.start(Job("leg", leg.name, call, leg=leg)))
        while not all(isinstance(leg, Placed) and leg.has_started for leg in legs):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await _tell("all", seconds=time.monotonic() - begin)
        await asyncio.sleep(QUIET_SECONDS)
        await _tell("quiet")


async def _tell(stage: str, **more: float) -> None:
    me = psutil.Process()
    times = me.cpu_times()
    told = {"stage": stage, "rss": me.memory_info().rss, "cpu": times.user + times.system, **more}
    print(json.dumps(told), flush=True)
    await asyncio.to_thread(sys.stdin.readline)


def main() -> None:
    pods = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else PODS
    with running("1.33") as standin, tempfile.TemporaryDirectory() as folder:
        amounts = {"cpu": str(10 * pods), "pods": str(2 * pods)}
        standin.do(lambda cluster: cluster.add_node("hollow", amounts, hollow=True))
        command = [sys.executable, "-m", "benchmarks.kubernetes.many_pods", "--agent"]
        process = subprocess.Popen(
            [*command, str(standin.kubeconfig), str(pods), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        stages, requests = {}, {}
        for line in process.stdout:
            told = json.loads(line)
            stages[told["stage"]] = told
            requests[told["stage"]] = standin.server.requests.total()
            if told["stage"] == "all":
                watches = dict(standin.do(lambda cluster: +cluster.store.watches))
            process.stdin.write("\n")
            process.stdin.flush()
        process.wait()
    none, all_, quiet = stages["none"], stages["all"], stages["quiet"]
    print(f"{pods} pods on the stand-in, load {os.getloadavg()[0]:.1f}")
    each = (all_["cpu"] - none["cpu"]) / pods * 1000
    print(f"  started in {all_['seconds']:.1f} s, {each:.1f} ms of CPU each")
    per_pod = (all_["rss"] - none["rss"]) / pods / 1024
    print(
        f"  resident: {none['rss'] >> 20} MB without, {all_['rss'] >> 20} MB with them: {per_pod:.0f} kB each"
    )
    print(f"  open watches: {watches}")
    print(f"  requests: {(requests['all'] - requests['none']) / pods:.2f} a pod to start it")
    idle = requests["quiet"] - requests["all"]
    cpu = quiet["cpu"] - all_["cpu"]
    print(f"  {QUIET_SECONDS:.0f} s in which nothing happens: {idle} requests, {cpu:.2f} s of CPU")


if __name__ == "__main__":
    if "--agent" in sys.argv:
        where, number, path = sys.argv[2:]
        asyncio.run(agent(where, int(number), Path(path)))
    else:
        main()
