"""What users do, on Kubernetes: a search, a gang, pause and resume, doors and pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.containers.test_container_cluster import PORT, SERVE, proxied, task_of
from tests.integration.test_notebook import Jupyter
from tests.integration.test_search import OPERATIONS_SCRIPT
from tests.kubernetes.agents import POOLS, Agent, reasons
from tests.kubernetes.conftest import KUBECONFIG, NEWEST, NODES, Target
from tests.kubernetes.disturbances import delete, fast_disks
from tests.local_cluster import DET, LocalCluster
from tests.waiting import TIMEOUT_S, until

pytestmark = pytest.mark.parametrize("target", [NEWEST], indirect=True, scope="session")

GANG_SCRIPT = Path(__file__).parents[1] / "integration/gangs/ddp_losses.py"
TRIALS = 16 if KUBECONFIG else 4
SEARCH = f"""
name: on kubernetes
entrypoint: python3 script.py
resources: {{resource_pool: kube}}
hyperparameters:
  a: {{type: double, minval: 0, maxval: 1}}
searcher:
  {{name: adaptive_asha, metric: x, max_trials: {TRIALS}, max_concurrent_trials: 4,
   max_length: {{batches: 16}}, mode: standard, divisor: 4, max_rungs: 2}}
reproducibility: {{experiment_seed: 11}}
max_restarts: 0
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.running(config=POOLS) as made:
        yield made


@pytest.fixture(scope="module")
def agent(cluster: LocalCluster, target: Target) -> Iterator[Agent]:
    made = Agent(cluster, target, "kube-1")
    yield made
    made.stop()


@pytest.fixture
def gang_agent(cluster: LocalCluster, agent: Agent, target: Target) -> Iterator[Agent]:
    """Instead of the other: one slot on each node of two cores."""
    agent.stop()
    made = Agent(cluster, target, "kube-gang", slot_resources={"cpu": "1500m"})
    yield made
    made.stop()
    agent.start()


def test_a_search(cluster: LocalCluster, agent: Agent, target: Target, tmp_path: Path) -> None:
    experiment = cluster.submit(tmp_path, SEARCH, script_py=OPERATIONS_SCRIPT)
    assert cluster.wait(experiment) == "COMPLETED", cluster.logs(experiment) + agent.log()
    trials = cluster.trials(experiment)
    assert [trial["state"] for trial in trials] == ["COMPLETED"] * TRIALS
    checkpoints = cluster.json("experiment", "list-checkpoints", str(experiment))
    assert {row["training"]["trialId"] for row in checkpoints} == {trial["id"] for trial in trials}
    for trial in trials:
        found = cluster.session().get(f"/api/v1/trials/{trial['id']}")["trial"]["legs"]
        assert {leg["agentId"] for leg in found} == {agent.name}
    until("nothing is left", target.left, equals=[])


GANG = """
name: gang on kubernetes
entrypoint: python3 -m determined.launch.torch_distributed -- python3 train.py
resources: {resource_pool: kube, slots_per_trial: 2}
environment: {environment_variables: [HELD=1]}
searcher: {name: single, metric: loss, max_length: {batches: 10}}
max_restarts: 0
"""
FAST = ("{environment_variables: [HELD=1]}", "{pod_spec: {spec: {nodeSelector: {disk: fast}}}}")
STAYING = """
import time, determined as det
with det.core.init() as core:
    print("begun", flush=True)
    while not core.preempt.should_preempt():
        time.sleep(0.05)
    print("preempted", flush=True)
"""
SINGLE = """
name: paused
entrypoint: python3 script.py
resources: {resource_pool: kube}
searcher: {name: single, metric: x, max_length: {batches: 1}}
max_restarts: 0
"""


def losses(output: str) -> dict[int, str]:
    """By step; of a repeated step the last."""
    return {int(step): loss for step, loss in re.findall(r"loss (\d+) (\S+)\n", output)}


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, str]:
    """The losses of two processes of this machine without a cluster."""
    command = [sys.executable, "-m", "determined.launch.torch_distributed", "--nproc_per_node=2"]
    ran = subprocess.run(
        [*command, "--", sys.executable, str(GANG_SCRIPT)],
        env={name: value for name, value in os.environ.items() if not name.startswith("DET_")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stderr
    found = losses(ran.stdout)
    assert sorted(found) == list(range(1, 11))
    return found


@pytest.mark.parametrize("lost", ["chief", "other", "both"])
def test_a_gang_of_two_nodes_that_loses_pods(
    cluster: LocalCluster,
    gang_agent: Agent,
    target: Target,
    undisturbed: dict[int, str],
    tmp_path: Path,
    lost: str,
) -> None:
    """It waits in its fifth step; the next leg goes on from the checkpoint, to the same losses."""
    experiment = cluster.submit(tmp_path, GANG, train_py=GANG_SCRIPT.read_text())
    cluster.wait_for_lines(experiment, "held 5", 2)
    pods = sorted(target.list("pods"), key=node_number)
    assert [node_number(pod) for pod in pods] == ["0", "1"]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    for pod in {"chief": pods[:1], "other": pods[1:], "both": pods}[lost]:
        delete(target, "pods", pod["metadata"]["name"])
    assert cluster.wait(experiment) == "COMPLETED", cluster.logs(experiment) + gang_agent.log()
    found = losses(cluster.logs(experiment) + "\n")
    assert found == undisturbed
    until("nothing is left", target.left, equals=[])


@pytest.mark.skipif(KUBECONFIG is not None and not NODES, reason="labels nodes: set DET_TEST_NODES")
def test_half_a_gang_without_room_goes_back_whole(
    cluster: LocalCluster,
    agent: Agent,
    target: Target,
    undisturbed: dict[int, str],
    tmp_path: Path,
) -> None:
    """One node has room for one of its two pods. On a Kubernetes without gates that one runs, and waits for
    the other; then both are withdrawn."""
    agent.stop()
    gangs = Agent(cluster, target, "kube-half", slot_resources={"cpu": "1500m"}, unplaced_after=8)
    try:
        with fast_disks(target, 1):
            experiment = cluster.submit(
                tmp_path, GANG.replace(*FAST), train_py=GANG_SCRIPT.read_text()
            )
            log = lambda: cluster.det("e", "logs", str(experiment), check=False).stdout  # noqa: E731
            words = "its agent's cluster did not place it: "
            until("the whole gang is back in the queue", lambda: words in log(), show=gangs.log)
            until("no node of it is left", target.left, equals=[])
            (trial,) = cluster.trials(experiment)
            assert "0/" in (told := reasons(cluster, trial["id"])) and "nodes are available" in told
            assert "loss" not in log()
        with fast_disks(target, 2):
            assert cluster.wait(experiment) == "COMPLETED", log() + gangs.log()
        assert losses(log() + "\n") == undisturbed
        (trial,) = cluster.trials(experiment)
        assert trial["restarts"] == 0
        until("nothing is left", target.left, equals=[])
    finally:
        gangs.stop()
        agent.start()


def node_number(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["determined-prefect.io/node"])


def test_pause_and_resume(
    cluster: LocalCluster, agent: Agent, target: Target, tmp_path: Path
) -> None:
    experiment = cluster.submit(tmp_path, SINGLE, script_py=STAYING)
    cluster.wait_for_lines(experiment, "begun")
    cluster.det("experiment", "pause", str(experiment))
    cluster.wait_for_lines(experiment, "preempted")
    until("no pod is left", target.left, equals=[])
    cluster.det("experiment", "activate", str(experiment))
    cluster.wait_for_lines(experiment, "begun", 2)
    cluster.det("experiment", "kill", str(experiment))
    assert cluster.wait(experiment) == "CANCELED"
    until("nothing is left", target.left, equals=[])


def test_somebody_enters_a_command(cluster: LocalCluster, agent: Agent, target: Target) -> None:
    config = ["--config", "resources.resource_pool=kube", "--config", "resources.slots=0"]
    words = ("sh", "-c", "echo begun; sleep 600")
    task_id = cluster.det("cmd", "run", "-d", *config, "--", *words).stdout.split()[-1]
    try:
        until("it runs", lambda: "begun" in cluster.det("task", "logs", task_id).stdout)
        entered = subprocess.run(
            [*DET, "exec", task_id, "--", "sh", "-c", "echo $DET_AGENT_ID; pwd"],
            env=cluster.env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert entered.returncode == 0, entered.stderr + agent.log()
        assert entered.stdout.splitlines()[0] == agent.name
        assert "/run/determined/" in entered.stdout
    finally:
        cluster.det("cmd", "kill", task_id)
    until("nothing is left", target.left, equals=[])


def test_pages_of_tasks(
    cluster: LocalCluster, agent: Agent, target: Target, tmp_path: Path
) -> None:
    """A trial's port and, on a real cluster, a TensorBoard of its curves and a notebook, through the proxy.

    The stand-in's pods have a ``/dev/shm`` that hides the storage of the tests' cluster, which lies there.
    """
    # Not the port of the tests of containers, which may run beside these on this machine.
    port, script = (text.replace("18265", "18267") for text in (PORT, SERVE))
    experiment = cluster.submit(tmp_path, SINGLE + port, script_py=script)
    proxied(cluster, f"/proxy/{task_of(cluster, experiment)}/", "script.py")
    if target.standin is None:
        config = ["--config", "resources={resource_pool: kube, slots: 0}"]
        board = cluster.det("tensorboard", "start", "-d", *config, str(experiment)).stdout.strip()
        proxied(cluster, f"/proxy/{board}/data/runs", "trial")
        cluster.det("tensorboard", "kill", board)
        notebook = cluster.det("notebook", "start", "-d", *config).stdout.strip()
        assert "text/plain" in Jupyter(cluster, notebook).run("6 * 7")
        cluster.det("notebook", "kill", notebook)
    cluster.det("experiment", "kill", str(experiment))
    until("nothing is left", target.left, equals=[])
