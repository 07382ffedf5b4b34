"""Machines that are taken back while trials run there: real agents and processes, and a service that dies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from determined.experimental.client import ExperimentState
from tests.integration.second_agent import SecondAgent, second_agent
from tests.local_cluster import LocalCluster
from tests.processes import is_alive
from tests.waiting import TIMEOUT_S, until

POOLS = "resource_pools: [{pool_name: default}, {pool_name: spot}]\n"
SPOT: dict[str, Any] = {"resource_pool": "spot", "slots": 1, "grace_seconds": 200}
CONFIG = """
name: spot
entrypoint: python3 script.py
resources: {resource_pool: spot, slots_per_trial: %d}
hyperparameters: {}
searcher: {name: single, metric: x, max_length: 50}
max_restarts: 0
"""
# The first leg comes to step 20 and waits there to be told; the next one goes on to the end.
TRAIN = """
import os, time
import determined as det

def train(core, info, step):
    for op in core.searcher.operations():
        while step < op.length:
            if core.preempt.should_preempt():
                if core.distributed.rank == 0:
                    with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                        (path / "step").write_text(str(step))
                return
            if os.environ["DET_TRIAL_RUN_ID"] == "1" and step == 20:
                time.sleep(0.05)
                continue
            step += 1
            if core.distributed.rank == 0:
                core.train.report_training_metrics(step, {"x": step})
        if core.distributed.rank == 0:
            core.train.report_validation_metrics(step, {"x": step})
            op.report_completed(step)

info = det.get_cluster_info()
nodes = len(info.container_addrs)
distributed = det.core.DistributedContext(
    rank=info.container_rank, size=nodes, local_rank=0, local_size=1, cross_rank=info.container_rank,
    cross_size=nodes, chief_ip=info.container_addrs[0],
) if nodes > 1 else None
with det.core.init(distributed=distributed) as core:
    step = 0
    if info.latest_checkpoint:
        with core.checkpoint.restore_path(info.latest_checkpoint) as path:
            step = int((path / "step").read_text())
    print(f"begins at {step}", flush=True)
    train(core, info, step)
"""

Spot = tuple[LocalCluster, SecondAgent, SecondAgent]


@pytest.fixture(scope="module")
def spot() -> Iterator[Spot]:
    """A cluster with two agents of one slot whose machines are taken back."""
    with (
        LocalCluster.running(config=POOLS) as cluster,
        second_agent(cluster, "spot-1", **SPOT) as first,
        second_agent(cluster, "spot-2", **SPOT) as second,
    ):
        yield cluster, first, second


def begin(cluster: LocalCluster, tmp_path: Path, slots: int = 1) -> int:
    """A trial that waits at step 20."""
    experiment = cluster.submit(tmp_path, CONFIG % slots, script_py=TRAIN)

    def reported() -> bool:
        ended = ExperimentState[cluster.state(experiment)].terminal
        assert not ended, cluster.logs(experiment)
        trials = cluster.trials(experiment)
        return bool(trials) and 20 in cluster.reported(trials[0]["id"], "training")

    until("step 20", reported)
    return experiment


def supervisors(*agents: SecondAgent) -> list[int]:
    records = [path for one in agents for path in one.work_dir.glob("allocations/*/leg.json")]
    return [json.loads(path.read_text())["supervisor"]["pid"] for path in records]


def legs_of(cluster: LocalCluster, experiment: int) -> list[dict[str, Any]]:
    """Once the experiment has completed, without a restart."""
    assert cluster.wait(experiment) == "COMPLETED", cluster.logs(experiment)
    (trial,) = cluster.trials(experiment)
    assert trial["restarts"] == 0
    steps = cluster.reported(trial["id"], "training")
    assert steps == list(range(1, 51))
    found = cluster.session().get(f"/api/v1/trials/{trial['id']}")["trial"]["legs"]
    return list(found)


def lines(cluster: LocalCluster, experiment: int, word: str) -> list[str]:
    return [line for line in cluster.logs(experiment).splitlines() if word in line]


def test_a_trial_goes_on_from_the_step_at_which_it_was_told(spot: Spot, tmp_path: Path) -> None:
    cluster, *agents = spot
    experiment = begin(cluster, tmp_path)
    (pid,) = supervisors(*agents)
    os.kill(pid, signal.SIGTERM)
    first, second = legs_of(cluster, experiment)
    assert first["state"] == "STATE_PREEMPTED"
    assert first["reason"].startswith("its machine is going away: spot-")
    assert second["state"] == "STATE_COMPLETED"
    assert [line.rpartition("begins at ")[2] for line in lines(cluster, experiment, "begins")] == [
        "0",
        "20",
    ]


def test_the_service_is_killed_while_the_machine_goes_away(spot: Spot, tmp_path: Path) -> None:
    cluster, *agents = spot
    experiment = begin(cluster, tmp_path)
    (pid,) = supervisors(*agents)
    record = json.loads((cluster.data_dir / "run" / "service.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)
    until("the end of the service", lambda: not is_alive(record["pid"]))
    os.kill(pid, signal.SIGTERM)
    cluster.up()
    first, _ = legs_of(cluster, experiment)
    assert first["state"] == "STATE_PREEMPTED" and "going away" in first["reason"]


def test_all_nodes_are_told_of_one_machine(spot: Spot, tmp_path: Path) -> None:
    cluster, *agents = spot
    experiment = begin(cluster, tmp_path, slots=2)
    pids = supervisors(*agents)
    assert len(pids) == 2
    os.kill(pids[1], signal.SIGTERM)
    first, _ = legs_of(cluster, experiment)
    assert first["state"] == "STATE_PREEMPTED" and "going away" in first["reason"]
    assert len(lines(cluster, experiment, "begins at 20")) == 2


def test_an_agent_is_stopped_with_its_machine(spot: Spot, tmp_path: Path) -> None:
    cluster, *agents = spot
    experiment = begin(cluster, tmp_path)
    (leaves,) = [one for one in agents if supervisors(one)]
    leaves.process.terminate()
    assert leaves.process.wait(TIMEOUT_S) == 0
    first, second = legs_of(cluster, experiment)
    assert first["state"] == "STATE_PREEMPTED" and second["agentId"] != first["agentId"]
    assert len(lines(cluster, experiment, "begins at 20")) == 1
