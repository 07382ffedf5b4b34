"""Prefect's side of Kubernetes agents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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


LOOK = """
import asyncio, logging
from types import SimpleNamespace
from determined_deployments.agent import __main__ as program
from determined_deployments.agent.agent import AgentRunner

async def look(self):
    from kopf._core.intents.piggybacking import login_via_async_client
    from determined_deployments.agent.launchers.kubernetes.worker import DeterminedKubernetesWorker
    worker = DeterminedKubernetesWorker(work_pool_name="p")
    given = SimpleNamespace(cluster_config=None)
    async with worker._get_configured_kubernetes_client(given) as client:
        print(client.configuration.host)
    settings = SimpleNamespace(networking=SimpleNamespace(trust_env=False))
    print((await login_via_async_client(logger=logging.getLogger(), settings=settings)).server)

AgentRunner.run = look
program.main()
"""


@pytest.mark.parametrize("named_by", ["settings", "environment"])
def test_prefect_uses_the_cluster_of_the_agent(tmp_path: Path, named_by: str) -> None:
    """Also in a pod, whose account would be another cluster's."""
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"name": "x", "cluster": {"server": "http://127.0.0.1:2"}}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    user = {"name": "x", "user": {"token": "t"}}
    found = {"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "x"}
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **found}))
    settings = tmp_path / "agent.json"
    of_settings = {"kubeconfig": str(kubeconfig)} if named_by == "settings" else {}
    given = {
        "agent_id": "a",
        "agent_token": "t",
        "work_dir": str(tmp_path),
        "launcher": "kubernetes",
    }
    given |= {"master_url": "http://m:1", "kubernetes": of_settings}
    settings.write_text(json.dumps(given))
    env = {**os.environ, "DET_AGENT_CONFIG": str(settings), "HOME": str(tmp_path)}
    env |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    env["KUBECONFIG"] = "/does/not/exist" if named_by == "settings" else str(kubeconfig)
    command = [sys.executable, "-c", LOOK]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.stdout.splitlines() == ["http://127.0.0.1:2"] * 2, done.stderr
