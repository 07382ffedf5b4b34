"""From the agent's order to the first line of a container, beside `docker run` of the same image and command.

`python -m benchmarks.container_start [PAIRS]`, with the images of `make images` in the engine. The command
imports the harness. Both ways stop at the moment that the command itself prints; they take turns.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from determined import __version__
from determined.common.wire.legs import LegSpec
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.base import Call, Job
from determined_deployments.agent.launchers.docker.launcher import DockerLauncher
from determined_deployments.agent.launchers.testing_agent import no_model_definition
from tests.programs.legs.fake_service import FakeService, archive, spec

PAIRS = 15
IMAGE = f"determined-prefect/harness:{__version__}"
COMMAND = ["python3", "-c", "import determined, time; print('first', time.time())"]
FIRST = re.compile(r"first ([\d.]+)")


def by_docker_run() -> float:
    """Seconds to the first line."""
    # The same limits and options as a leg's.
    options = ["--rm", "--init", "--network", "host", "--shm-size", "4g", "--log-driver", "local"]
    begin = time.time()
    command = ["docker", "run", *options, IMAGE, *COMMAND]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return _first(done.stdout) - begin


async def by_leg(launcher: DockerLauncher, service: FakeService, number: int) -> float:
    """Seconds to the first line."""
    config = launcher.config
    order = spec(f"7.abc.{number}", entrypoint=COMMAND)
    place = {
        "work_dir": str(config.work_dir),
        "master": config.master_url,
        "agent_token": "secret",
        "agent_id": config.agent_id,
        **config.security_of_tasks(),
    }
    leg = LegSpec.from_json(order)
    call = Call("determined_tasks.leg:supervise", {"spec": order, "place": place})
    service.logs.clear()
    begin = time.time()
    held = Held(launcher, await launcher.start(Job("leg", leg.allocation_id, call, leg=leg)))
    await held.ended
    await held.clean_up()
    return _first(service.text("stdout")) - begin


def _first(said: str) -> float:
    found = FIRST.search(said)
    assert found is not None, said
    return float(found[1])


async def measure(pairs: int, folder: Path) -> list[tuple[float, float]]:
    service = FakeService()
    service.model_defs["d1"] = archive({"empty": ""})
    config = AgentConfig.model_validate(
        {
            "agent_id": "benchmark",
            "slots": 1,
            "master_url": service.url,
            "token": "secret",
            "work_dir": folder,
            "launcher": "docker",
        }
    )
    found = []
    async with DockerLauncher(config, no_model_definition) as launcher:
        await launcher.ready()
        for number in range(pairs + 1):
            ours = await by_leg(launcher, service, number)
            theirs = await asyncio.to_thread(by_docker_run)
            if number:  # the first warms caches
                found.append((ours, theirs))
    service.close()
    return found


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else PAIRS
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(pairs, Path(folder)))
    ours, theirs = zip(*found, strict=True)
    ratios = sorted(a / b for a, b in found)
    print(f"{pairs} pairs, {IMAGE}, load {os.getloadavg()[0]:.1f}")
    print(f"a leg:        median {statistics.median(ours):.3f} s ({min(ours):.3f}-{max(ours):.3f})")
    print(
        f"docker run:   median {statistics.median(theirs):.3f} s ({min(theirs):.3f}-{max(theirs):.3f})"
    )
    print(
        f"of each pair: median {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    )


if __name__ == "__main__":
    main()
