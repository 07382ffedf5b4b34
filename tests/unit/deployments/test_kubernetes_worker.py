"""Prefect's side of Kubernetes agents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

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


ENTER_AND_LEAVE = """
import asyncio
from prefect_kubernetes import observer
from determined_deployments.agent.launchers.kubernetes.launcher import end_observer
from determined_deployments.agent.launchers.kubernetes.worker import DeterminedKubernetesWorker

async def main():
    entering = asyncio.create_task(DeterminedKubernetesWorker(work_pool_name="p").__aenter__())
    while observer._stop_flag is None:
        await asyncio.sleep(0.01)
    # Its thread for the flag begins with the operator, which fails soon: there is no cluster.
    observer._observer_thread.join(5)
    entering.cancel()
    end_observer()

asyncio.run(main())
print("left", flush=True)
"""


def test_the_agents_process_does_not_wait_for_prefects_observer(tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:1/api"
    done = subprocess.run(
        [sys.executable, "-c", ENTER_AND_LEAVE],
        env={**os.environ, "PREFECT_API_URL": nobody, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (done.stdout, done.returncode) == ("left\n", 0), done.stderr


async def test_deployments_runs_go_to_the_cluster_of_the_agents_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ``KUBECONFIG`` said when the agent's modules were imported."""
    from determined_deployments.agent.launchers.kubernetes.client import Client
    from determined_deployments.agent.launchers.kubernetes.worker import DeterminedKubernetesWorker

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", "/does/not/exist")
    path = tmp_path / "kubeconfig"
    named = {"name": "x", "cluster": {"server": "http://127.0.0.1:2"}}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    user = {"name": "x", "user": {"token": "t"}}
    found = {"clusters": [named], "contexts": [context], "users": [user], "current-context": "x"}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **found}))
    async with Client(str(path), None, 10.0):
        worker = DeterminedKubernetesWorker(work_pool_name="p")
        configuration = SimpleNamespace(cluster_config=None)
        async with worker._get_configured_kubernetes_client(configuration) as client:
            assert client.configuration.host == "http://127.0.0.1:2"
