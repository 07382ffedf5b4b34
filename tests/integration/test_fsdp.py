"""The example of FSDP: a trial in parts on two processes, to the end, and paused and killed on its way."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.local_cluster import LocalCluster
from tests.outcomes import client
from tests.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples/fsdp"
ASKED = "            if core_context.preempt.should_preempt():\n"
STOPS = """\
            while epoch == 3 and latest_checkpoint is None:
                if core_context.preempt.should_preempt():
                    return
            if epoch == 6 and not os.path.exists({go!r}):
                import time
                print("held", os.getpid(), flush=True)
                while not os.path.exists({go!r}):
                    time.sleep(0.05)
"""
"""The first leg waits for its pause after epoch 3, a later one for the file ``go`` after epoch 6."""


def submit(cluster: LocalCluster, folder: Path, processes: int, stops: str = "") -> int:
    script = (EXAMPLE / "train.py").read_text()
    assert script.count(ASKED) == 1
    configuration = yaml.safe_load((EXAMPLE / "const.yaml").read_text())
    configuration["resources"]["slots_per_trial"] = processes
    changed = script.replace(ASKED, stops + ASKED)
    return cluster.submit(folder, yaml.safe_dump(configuration), train_py=changed)


def reports(cluster: LocalCluster, experiment_id: int, group: str) -> dict[int, dict[str, Any]]:
    (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
    return {one.steps_completed: one.metrics for one in trial.iter_metrics(group)}


def check_paused_and_killed(cluster: LocalCluster, folder: Path, processes: int) -> None:
    """An experiment that is paused, and then loses a process to SIGKILL, has the losses of an unbroken one,
    bit for bit. The slots may be GPUs, too: ``python -m benchmarks.gpu.fsdp``.
    """
    unbroken = submit(cluster, folder / "unbroken", processes)
    assert cluster.wait(unbroken) == "COMPLETED", cluster.logs(unbroken)
    expected = reports(cluster, unbroken, "training")
    assert list(expected) == list(range(1, 11))
    assert reports(cluster, unbroken, "validation")[10]["accuracy"] > 0.9

    go = folder / "go"
    broken = submit(cluster, folder / "broken", processes, STOPS.format(go=str(go)))
    until(
        "epoch 3",
        lambda: 3 in reports(cluster, broken, "validation"),
        show=lambda: cluster.logs(broken),
    )
    cluster.det("experiment", "pause", str(broken))
    until("a checkpoint", lambda: cluster.trials(broken)[0]["checkpointCount"])
    cluster.det("experiment", "activate", str(broken))
    held = until(
        "held processes",
        lambda: len(pids := re.findall(r"held (\d+)", cluster.logs(broken))) == processes and pids,
        show=lambda: cluster.logs(broken),
    )
    os.kill(int(held[-1]), signal.SIGKILL)
    until("none of them", lambda: [pid for pid in held if psutil.pid_exists(int(pid))], equals=[])
    go.touch()
    assert cluster.wait(broken) == "COMPLETED", cluster.logs(broken)

    assert cluster.trials(broken)[0]["restarts"] == 1
    begun = re.findall(r"\[rank=0\] .*going on after epoch (\d+)", cluster.logs(broken))
    # The checkpoint of epoch 6 may have been on its way when the process was killed.
    assert begun[0] == "3"
    assert begun[1:] in (["5"], ["6"])
    assert reports(cluster, broken, "training") == expected
    assert reports(cluster, broken, "validation") == reports(cluster, unbroken, "validation")
    (trial,) = client(cluster).get_experiment(broken).get_trials()
    parts = {Path(name).name for name in trial.list_checkpoints()[0].resources}
    assert {".metadata", *(f"__{rank}_0.distcp" for rank in range(processes))} <= parts


def test_two_processes(cluster: LocalCluster, tmp_path: Path) -> None:
    check_paused_and_killed(cluster, tmp_path, 2)
