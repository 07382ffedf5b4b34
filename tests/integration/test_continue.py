"""`det experiment continue` on real processes; the test kills some of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from tests.local_cluster import LocalCluster
from tests.waiting import TIMEOUT_S, until

CONFIG = """
name: continued
entrypoint: python3 train.py
hyperparameters: {out: %s, x: {type: categorical, vals: [1, 2, 3]}}
searcher: {name: grid, metric: loss, max_length: 4, max_concurrent_trials: 1}
max_restarts: 0
"""

# A step a checkpoint; x = 2 cannot go beyond step 2 until somebody has mended it, and then not before
# the search's driver was killed.
TRAIN = """
import pathlib, time
import determined as det
info = det.get_cluster_info()
out = pathlib.Path(info.trial.hparams["out"])
x = info.trial.hparams.get("x", 0)
with det.core.init() as core:
    steps = 0
    if info.latest_checkpoint is not None:
        with core.checkpoint.restore_path(info.latest_checkpoint) as path:
            steps = int((path / "steps").read_text())
    with (out / "legs").open("a") as log:
        log.write(f"{x} from {steps}\\n")
    for op in core.searcher.operations():
        while steps < op.length:
            if x == 2 and steps == 2 and not (out / "mended").exists():
                raise RuntimeError("x = 2 needs mending")
            while x == 2 and steps == 2 and not (out / "killed").exists():
                time.sleep(0.02)
            steps += 1
            core.train.report_training_metrics(steps, {"loss": 1 / steps})
            with core.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                (path / "steps").write_text(str(steps))
        core.train.report_validation_metrics(steps, {"loss": 1 / steps})
        op.report_completed(1 / steps)
"""


def flow_pid(cluster: LocalCluster, run_id: str) -> int | None:
    """The process that the agent runs the flow in; None: none, or it is just being written down."""
    path = cluster.data_dir / "agent" / "flow_runs" / f"{run_id}.json"
    try:
        return int(json.loads(path.read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def test_a_search_of_which_one_trial_failed(cluster: LocalCluster, tmp_path: Path) -> None:
    experiment = cluster.submit(tmp_path, CONFIG % tmp_path, train_py=TRAIN)
    assert cluster.wait(experiment) == "COMPLETED"
    assert sorted(t["state"] for t in cluster.trials(experiment)) == [
        "COMPLETED", "COMPLETED", "ERROR",
    ]  # fmt: skip
    before = {t["id"]: t for t in cluster.trials(experiment)}
    # The flow that drove it may still be on its way out, with its record in place.
    run_id = cluster.describe(experiment)["flowRunId"]
    old = flow_pid(cluster, run_id)
    (tmp_path / "mended").touch()
    said = cluster.det("experiment", "continue", str(experiment)).stdout
    assert said == f"Continued experiment {experiment}\n"
    # The flow that drives it again is killed while the trial waits for that.

    def another() -> int | None:
        pid = flow_pid(cluster, run_id)
        return pid if pid != old else None

    pid = until("the flow that drives it again", another, show=lambda: cluster.describe(experiment))
    os.kill(pid, signal.SIGKILL)
    (tmp_path / "killed").touch()
    assert cluster.wait(experiment) == "COMPLETED"
    after = {t["id"]: t for t in cluster.trials(experiment)}
    assert after.keys() == before.keys()
    assert {t["state"] for t in after.values()} == {"COMPLETED"}
    legs = (tmp_path / "legs").read_text().splitlines()
    # Only the failed trial ran again, from its checkpoint.
    assert sorted(legs) == ["1 from 0", "2 from 0", "2 from 2", "3 from 0"]
    refused = cluster.det("experiment", "continue", str(experiment), check=False)
    assert refused.returncode == 1
    assert "all 3 trials" in refused.stderr


def own_lines(cluster: LocalCluster, task_id: str) -> list[str]:
    """Of one task's log, what its script says of the task."""
    record = json.loads((cluster.data_dir / "cluster.json").read_text())
    login = {"username": "determined", "password": record["passwords"]["determined"]}
    with httpx.Client(base_url=record["master_url"], trust_env=False, timeout=TIMEOUT_S) as client:
        token = client.post("/api/v1/auth/login", json=login).json()["token"]
        headers = {"Authorization": f"Bearer {token}"}
        answer = client.get(f"/api/v1/tasks/{task_id}/logs", headers=headers)
    lines = [json.loads(line)["result"]["log"].strip() for line in answer.text.splitlines()]
    return [line for line in lines if line.startswith("task ")]


def test_a_single_trial_trains_longer_twice_each_time_as_another_task(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    config = (CONFIG % tmp_path).replace(", x: {type: categorical, vals: [1, 2, 3]}", "")
    config = config.replace("grid", "single").replace(", max_concurrent_trials: 1", "")
    telling = TRAIN.replace(
        "with det.core.init() as core:",
        "print('task', info.task_id, 'allocation', info.allocation_id)\nwith det.core.init() as core:",
    )
    experiment = cluster.submit(tmp_path, config, train_py=telling)
    assert cluster.wait(experiment) == "COMPLETED"
    for length in (6, 7):
        longer = f"searcher.max_length={length}"
        cluster.det("experiment", "continue", str(experiment), "--config", longer)
        assert cluster.wait(experiment) == "COMPLETED"
    (trial,) = cluster.trials(experiment)
    base = f"{experiment}.{trial['requestId']}"
    tasks = [base, f"{base}-1", f"{base}-2"]
    assert (trial["taskId"], trial["taskIds"]) == (tasks[2], tasks)
    expected = [f"task {task} allocation {task}.{run}" for run, task in enumerate(tasks, start=1)]
    lines = cluster.det("trial", "logs", str(trial["id"])).stdout.splitlines()
    assert [line.partition("|| ")[2] for line in lines if "|| task " in line] == expected
    for task, line in zip(tasks, expected, strict=True):
        assert own_lines(cluster, task) == [line]
    assert (tmp_path / "legs").read_text().splitlines() == ["0 from 0", "0 from 4", "0 from 6"]
    legs = cluster.json("trial", "describe", str(trial["id"]))["legs"]
    assert [leg["allocationId"] for leg in legs] == [line.split()[-1] for line in expected]
    assert trial["totalBatchesProcessed"] == 7
    other = ("--config", "searcher.name=random")
    refused = cluster.det("experiment", "continue", str(experiment), *other, check=False)
    assert refused.returncode == 1
    assert "keeps its search method" in refused.stderr


def test_help_describes_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "determined.cli", "experiment", "continue", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--config-file" in done.stdout
