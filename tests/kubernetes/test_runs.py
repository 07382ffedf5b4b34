"""What users do, on Kubernetes: a search, a gang, pause and resume, doors and pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_search import OPERATIONS_SCRIPT
from tests.kubernetes.agents import POOLS, Agent
from tests.kubernetes.conftest import KUBECONFIG, NEWEST, Target
from tests.local_cluster import LocalCluster
from tests.waiting import until

pytestmark = pytest.mark.parametrize("target", [NEWEST], indirect=True, scope="session")

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
