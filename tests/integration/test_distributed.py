"""A trial of two processes on a cluster: to the end, through a pause, and past the death of one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.local_cluster import LocalCluster
from tests.outcomes import client
from tests.waiting import TIMEOUT_S, until

EXAMPLE = Path(__file__).parents[2] / "examples/distributed"


def config(**changes: Any) -> str:
    return yaml.safe_dump({**yaml.safe_load((EXAMPLE / "distributed.yaml").read_text()), **changes})


UNTIL_PREEMPTED = "not core_context.preempt.should_preempt()"
UNTIL_TOLD = "not pathlib.Path({go!r}).exists()"
"""What a held script waits for; the file is ``go`` in the folder that it was submitted from."""


def submit(cluster: LocalCluster, folder: Path, held: str = "False") -> int:
    """Submits the example. As long as ``held`` is true, no leg gets beyond epoch 3 without a checkpoint."""
    folder.mkdir(exist_ok=True)
    script = (EXAMPLE / "train.py").read_text()
    slow = script.replace(
        "            epoch += 1\n",
        "            epoch += 1\n"
        "            import os, time\n"
        "            print('pid', os.getpid(), flush=True)\n"
        "            while epoch == 4 and latest_checkpoint is None and "
        f"{held.format(go=str(folder / 'go'))}:\n"
        "                time.sleep(0.05)\n",
    )
    assert slow != script
    return cluster.submit(folder, config(), train_py=slow)


def accuracies(cluster: LocalCluster, experiment_id: int) -> dict[int, dict[str, Any]]:
    return {
        report.steps_completed: report.metrics
        for trial in client(cluster).get_experiment(experiment_id).get_trials()
        for report in trial.iter_metrics("validation")
    }


def losses(cluster: LocalCluster, experiment_id: int) -> dict[int, float]:
    (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
    return {
        report.steps_completed: report.metrics["loss"] for report in trial.iter_metrics("training")
    }


def wait_for_epoch(cluster: LocalCluster, experiment_id: int, epoch: int) -> None:
    until(
        f"epoch {epoch}",
        lambda: epoch in accuracies(cluster, experiment_id),
        show=lambda: cluster.logs(experiment_id),
    )


@pytest.fixture(scope="module")
def unbroken(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> int:
    experiment_id = submit(cluster, tmp_path_factory.mktemp("unbroken"))
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    return experiment_id


def test_two_processes_train_one_model(cluster: LocalCluster, unbroken: int) -> None:
    found = accuracies(cluster, unbroken)
    assert list(found) == list(range(1, 11))
    assert found[10]["accuracy"] > 0.9
    pids = re.findall(r"\[rank=(\d)\] .*pid (\d+)", cluster.logs(unbroken))
    assert {rank for rank, _ in pids} == {"0", "1"}
    assert len(set(pids)) == 2


def test_a_pause_changes_no_loss(cluster: LocalCluster, unbroken: int, tmp_path: Path) -> None:
    experiment_id = submit(cluster, tmp_path, UNTIL_PREEMPTED)
    wait_for_epoch(cluster, experiment_id, 3)
    cluster.det("experiment", "pause", str(experiment_id))
    until("a checkpoint", lambda: cluster.trials(experiment_id)[0]["checkpointCount"])
    cluster.det("experiment", "activate", str(experiment_id))
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    assert losses(cluster, experiment_id) == losses(cluster, unbroken)
    assert accuracies(cluster, experiment_id) == accuracies(cluster, unbroken)
    assert cluster.trials(experiment_id)[0]["restarts"] == 0


def test_one_killed_process_ends_the_gang_which_starts_again(
    cluster: LocalCluster, unbroken: int, tmp_path: Path
) -> None:
    experiment_id = submit(cluster, tmp_path, UNTIL_TOLD)
    wait_for_epoch(cluster, experiment_id, 2)
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", cluster.logs(experiment_id))]
    others = {pid for pid in pids if psutil.pid_exists(pid)}
    assert len(others) == 2
    os.kill(pids[-1], signal.SIGKILL)
    (tmp_path / "go").touch()
    until("no process left", lambda: [pid for pid in others if psutil.pid_exists(pid)], equals=[])
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    assert losses(cluster, experiment_id) == losses(cluster, unbroken)
    assert cluster.trials(experiment_id)[0]["restarts"] == 1


def workers(cluster: LocalCluster, experiment_id: int) -> list[psutil.Process]:
    """The trial's processes that exist now."""
    pids = {int(pid) for pid in re.findall(r"pid (\d+)", cluster.logs(experiment_id))}
    return [psutil.Process(pid) for pid in sorted(pids) if psutil.pid_exists(pid)]


def test_the_launcher_or_the_agent_killed(
    cluster: LocalCluster, unbroken: int, tmp_path: Path
) -> None:
    """Workers end with their launcher; a gang does not need the agent."""
    experiment_id = submit(cluster, tmp_path, UNTIL_TOLD)
    wait_for_epoch(cluster, experiment_id, 2)
    first = workers(cluster, experiment_id)
    launchers = {worker.ppid() for worker in first}
    assert (len(first), len(launchers)) == (2, 1)
    os.kill(launchers.pop(), signal.SIGKILL)
    _, alive = psutil.wait_procs(first, TIMEOUT_S)
    assert not alive
    second = until(
        "two new workers",
        lambda: len(now := workers(cluster, experiment_id)) == 2 and now,
        show=lambda: cluster.logs(experiment_id),
    )
    record = json.loads((cluster.data_dir / "run" / "agent.json").read_text())
    agent = psutil.Process(record["pid"])
    agent.kill()
    psutil.wait_procs([agent], TIMEOUT_S)
    cluster.up()
    (tmp_path / "go").touch()
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    assert losses(cluster, experiment_id) == losses(cluster, unbroken)
    pids = {int(pid) for pid in re.findall(r"pid (\d+)", cluster.logs(experiment_id))}
    assert pids == {worker.pid for worker in [*first, *second]}
    assert cluster.trials(experiment_id)[0]["restarts"] == 1


@pytest.mark.parametrize("processes", [1, 2])
def test_off_the_cluster(tmp_path: Path, processes: int) -> None:
    launch = ["-m", "determined.launch.torch_distributed", "--nproc_per_node=2", "--"]
    done = subprocess.run(
        [sys.executable, *(launch if processes > 1 else []), str(EXAMPLE / "train.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert ("[rank=0]" in done.stderr) == (processes > 1)
    assert "epoch 1: accuracy" in done.stderr
