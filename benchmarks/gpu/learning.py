"""What the fork server's learning costs after a trial that compiles: ``python -m benchmarks.gpu.learning``.

Three legs of the same code, which uses ``torch.compile`` (and imports DeepSpeed where it is installed).
After the first one the fork server tries to import what the leg had imported. Printed are the seconds from
the order to each leg's first line, and the CPU time that the fork server takes for it in a minute.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from determined.common.wire.legs import LegSpec
from determined_deployments.agent.launchers.fork_server import plans
from determined_deployments.agent.launchers.fork_server.learning import TRIAL, Learning
from determined_deployments.agent.launchers.fork_server.server import ForkServer, ZygotePlan
from determined_deployments.agent.launchers.fork_server.zygote import ROOT
from tests.programs.legs.fake_service import FakeService, archive, spec

WATCH_SECONDS = 60.0
_SCRIPT = """
import time
print("first line", time.time(), flush=True)
import torch
from torch import nn
try:
    import deepspeed
except ImportError:
    pass

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
model = torch.compile(model, backend="inductor" if device == "cuda" else "eager")
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(8, 64, device=device)).square().mean().backward()
optimizer.step()
print("first step", time.time(), flush=True)
"""


def _printed(service: FakeService, what: str) -> float:
    found = [line for line in service.text("stdout").splitlines() if line.startswith(what)]
    if not found:
        raise SystemExit(service.text("stderr")[-2000:] or "the script printed nothing")
    return float(found[-1].split()[-1])


def _cpu_seconds() -> float:
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        # With those children of it that have ended.
        total += times.user + times.system + times.children_user + times.children_system
    return total


async def _leg(server: ForkServer, learner: Learning, leg: LegSpec, place: dict[str, Any]) -> None:
    names, path = learner.before_leg(leg)
    await learner.settle(leg)
    order = {"spec": leg.to_json(), "place": place, "learn_into": path}
    child = await server.fork(names, "determined_tasks.leg:supervise", order)
    await child.ended
    learner.after_leg(leg)


async def _measure(folder: Path) -> None:
    service = FakeService()
    service.model_defs["d1"] = archive({"train.py": _SCRIPT})
    place = {
        "work_dir": str(folder),
        "master": service.url,
        "token": "secret",
        "agent_id": "benchmark",
        "compiled_bytes": 16 << 30,
    }

    async def fetch(_: str) -> bytes:
        return service.model_defs["d1"]

    imported = [*plans.TRIAL_MODULES, *plans.trial_optional()]
    async with ForkServer() as server:
        learner = Learning(server, folder, fetch, imported)
        server.want(ZygotePlan(TRIAL, ROOT, plans.TRIAL_MODULES, plans.trial_optional()))
        await server.wait_ready([TRIAL])
        for number in (1, 2, 3):
            leg = LegSpec.from_json(spec(f"7.abc.{number}", trial_id=number))
            began = time.time()
            await _leg(server, learner, leg, place)
            first, step = _printed(service, "first line"), _printed(service, "first step")
            print(f"leg {number}: first line after {first - began:.2f} s", end=", ")
            print(f"first step {step - first:.2f} s later", flush=True)
            if number == 1:
                before = _cpu_seconds()
            if number == 2:
                await asyncio.sleep(WATCH_SECONDS)
                print(
                    f"fork server: {_cpu_seconds() - before:.1f} s of CPU since leg 1, leg 2 included"
                )
    service.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(_measure(Path(name)))


if __name__ == "__main__":
    main()
