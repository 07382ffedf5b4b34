"""Prefect's side of Kubernetes agents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import TIMEOUT_S

ENTER = """
import asyncio, os
from determined_deployments.agent.launchers.kubernetes.worker import DeterminedKubernetesWorker

async def main():
    entering = asyncio.create_task(DeterminedKubernetesWorker(work_pool_name="p").__aenter__())
    for _ in range(20):
        await asyncio.sleep(0.01)
    print("the loop runs", flush=True)
    os._exit(0)

asyncio.run(main())
"""


def test_the_agent_works_while_prefects_observer_waits_for_prefect(tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:1/api"
    done = subprocess.run(
        [sys.executable, "-c", ENTER],
        env={**os.environ, "PREFECT_API_URL": nobody, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout == "the loop runs\n", done.stderr
