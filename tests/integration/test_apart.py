"""A search on an agent whose jobs run where it sees nothing: the launcher's contract, to the user's end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.second_agent import second_agent
from tests.integration.test_search import OPERATIONS_SCRIPT
from tests.local_cluster import DET, LocalCluster
from tests.waiting import TIMEOUT_S, until

POOLS = "resource_pools: [{pool_name: default}, {pool_name: apart}]\n"
SEARCH = """
name: apart
entrypoint: python3 script.py
resources: {resource_pool: apart}
hyperparameters:
  a: {type: double, minval: 0, maxval: 1}
searcher:
  {name: adaptive_asha, metric: x, max_trials: 6, max_concurrent_trials: 2, max_length: {batches: 16},
   mode: standard, divisor: 4, max_rungs: 2}
reproducibility: {experiment_seed: 11}
max_restarts: 0
"""


@pytest.fixture(scope="module")
def apart() -> Iterator[tuple[LocalCluster, Path]]:
    """A cluster with an agent of the tests' launcher, in a pool by itself; and the agent's directory."""
    with LocalCluster.running(config=POOLS) as cluster:
        launcher = "tests.programs.agent.subprocess_launcher:SubprocessLauncher"
        with second_agent(cluster, "apart-1", resource_pool="apart", launcher=launcher) as agent:
            yield cluster, agent.work_dir


def test_a_search_needs_no_file_system_of_the_agent(
    apart: tuple[LocalCluster, Path], tmp_path: Path
) -> None:
    cluster, work_dir = apart
    experiment = cluster.submit(tmp_path, SEARCH, script_py=OPERATIONS_SCRIPT)
    assert cluster.wait(experiment) == "COMPLETED", cluster.logs(experiment)
    trials = cluster.trials(experiment)
    assert [trial["state"] for trial in trials] == ["COMPLETED"] * 6
    checkpoints = cluster.json("experiment", "list-checkpoints", str(experiment))
    assert {row["training"]["trialId"] for row in checkpoints} == {trial["id"] for trial in trials}
    for trial in trials:
        found = cluster.session().get(f"/api/v1/trials/{trial['id']}")["trial"]["legs"]
        assert {leg["agentId"] for leg in found} == {"apart-1"}
    assert not (work_dir / "allocations").exists()


def test_somebody_enters_a_task_of_it(apart: tuple[LocalCluster, Path]) -> None:
    cluster, _ = apart
    config = ["--config", "resources.resource_pool=apart", "--config", "resources.slots=0"]
    # It has begun once its log has a line of it.
    words = ("sh", "-c", "echo begun; sleep 600")
    task_id = cluster.det("cmd", "run", "-d", *config, "--", *words).stdout.split()[-1]
    try:
        until("the command runs", lambda: "begun" in cluster.det("task", "logs", task_id).stdout)
        entered = subprocess.run(
            [*DET, "exec", task_id, "--", "sh", "-c", "echo $DET_AGENT_ID; pwd"],
            env=cluster.env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert entered.stdout.splitlines()[0] == "apart-1", entered.stderr
        assert "/apart-1.jobs/leg-" in entered.stdout
    finally:
        cluster.det("cmd", "kill", task_id)
