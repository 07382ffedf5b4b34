"""From the agent's order to the first line of a pod, beside a bare Job of the same image and command.

`KUBECONFIG=… python -m benchmarks.kubernetes.first_line [PAIRS]`, on a cluster whose only nodes are this
machine and have the images of `make images`; pods use its network. Both ways stop at the moment that the
command itself prints; they take turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from determined import __version__
from determined.common.wire.legs import LegSpec
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.base import Call, Job
from determined_deployments.agent.launchers.kubernetes.launcher import KubernetesLauncher
from determined_deployments.agent.launchers.testing_agent import no_model_definition
from determined_tasks.supervision import SUPERVISE
from tests.programs.legs.fake_service import FakeService, archive, spec

PAIRS = 15
IMAGE = os.environ.get("DET_TEST_IMAGE", f"determined-prefect/harness:{__version__}")
COMMANDS = {
    "python -V": ["python3", "-c", "import time; print('first', time.time())"],
    "the harness": ["python3", "-c", "import determined, time; print('first', time.time())"],
}
FIRST = re.compile(r"first ([\d.]+)")


def kubectl(namespace: str, *command: str, given: str | None = None) -> str:
    done = subprocess.run(
        ["kubectl", "--namespace", namespace, *command],
        input=given,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def by_bare_job(namespace: str, number: int, command: list[str]) -> float:
    """Seconds to the first line."""
    container = {"name": "main", "image": IMAGE, "command": command}
    pod: dict[str, Any] = {"restartPolicy": "Never", "hostNetwork": True, "containers": [container]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"bare-{number}"},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }
    begin = time.time()
    kubectl(namespace, "create", "-f", "-", given=json.dumps(job))
    name = f"job/bare-{number}"
    kubectl(namespace, "wait", "--for=condition=complete", "--timeout=120s", name)
    first = _first(kubectl(namespace, "logs", name))
    kubectl(namespace, "delete", name)
    return first - begin


async def by_leg(
    launcher: KubernetesLauncher, service: FakeService, number: int, command: list[str]
) -> float:
    """Seconds to the first line."""
    config = launcher.config
    order = spec(f"7.abc.{number}", entrypoint=command)
    leg = LegSpec.from_json(order)
    place = {
        "work_dir": str(launcher.work_dir("leg", leg.name)),
        "master": config.master_url,
        "token": "secret",
        "agent_id": config.agent_id,
        "slot_type": config.slot_type,
        **config.security_of_tasks(),
    }
    call = Call(SUPERVISE, {"spec": order, "place": place})
    service.logs.clear()
    begin = time.time()
    held = Held(launcher, await launcher.start(Job("leg", leg.name, call, leg=leg)))
    await held.ended
    await held.clean_up()
    return _first(service.text("stdout")) - begin


def _first(said: str) -> float:
    found = FIRST.search(said)
    assert found is not None, said
    return float(found[1])


async def measure(
    pairs: int, folder: Path, namespace: str, command: list[str]
) -> list[tuple[float, float]]:
    service = FakeService()
    service.model_defs["d1"] = archive({"empty": ""})
    config = AgentConfig.model_validate(
        {
            "agent_id": f"benchmark-{secrets.token_hex(3)}",
            "master_url": service.url,
            "agent_token": "secret",
            "work_dir": folder,
            "launcher": "kubernetes",
            "container": {"images": {"cpu": IMAGE}, "master_url": service.url},
            "kubernetes": {
                "namespace": namespace,
                "max_slots": 1,
                "pod_spec": {"spec": {"hostNetwork": True}},
            },
        }
    )
    found = []
    async with KubernetesLauncher(config, no_model_definition) as launcher:
        await launcher.adopt()
        await launcher.ready()
        for number in range(pairs + 1):
            ours = await by_leg(launcher, service, number, command)
            theirs = await asyncio.to_thread(by_bare_job, namespace, number, command)
            if number:  # the first warms caches
                found.append((ours, theirs))
    service.close()
    return found


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else PAIRS
    namespace = f"bench-{secrets.token_hex(3)}"
    kubectl("default", "create", "namespace", namespace)
    try:
        for name, command in COMMANDS.items():
            with tempfile.TemporaryDirectory() as folder:
                found = asyncio.run(measure(pairs, Path(folder), namespace, command))
            ours, theirs = zip(*found, strict=True)
            ratios = sorted(a / b for a, b in found)
            print(f"{name}: {pairs} pairs, {IMAGE}, load {os.getloadavg()[0]:.1f}")
            for what, times in (("a leg", ours), ("a bare Job", theirs)):
                print(
                    f"  {what}: median {statistics.median(times):.3f} s ({min(times):.3f}-{max(times):.3f})"
                )
            print(
                f"  of each pair: median {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
            )
    finally:
        kubectl("default", "delete", "namespace", namespace)


if __name__ == "__main__":
    main()
