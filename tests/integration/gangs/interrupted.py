"""An experiment whose training is paused, resumed, killed by SIGKILL and resumed, beside an unbroken one."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil

from determined.experimental.client import Trial
from tests.local_cluster import LocalCluster
from tests.outcomes import client
from tests.waiting import until

HELD = """
import os, time, torch
import determined as det
from model_def import DigitsTrial

FIRST_LEG = det.get_cluster_info().latest_checkpoint is None

class HeldTrial(DigitsTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        # The last batch before a report: a pause that takes long would make the Trainer report earlier.
        if batch_idx == 89 and FIRST_LEG and {holds}:
            print("pausable", os.getpid(), flush=True)
            # All processes ask in step.
            while not self.context._core.preempt.should_preempt(auto_ack=False):
                time.sleep(0.05)
        if batch_idx == 150 and {holds} and not os.path.exists({go!r}):
            print("held", os.getpid(), flush=True)
            while not os.path.exists({go!r}):
                time.sleep(0.05)
        return super().train_batch(batch, epoch_idx, batch_idx)
"""
"""The module ``held``, for the trial classes of examples: the first leg waits for its pause at batch 90, a
later one for the file ``go`` at batch 150. With ``holds=False`` none waits.
"""


def only_trial(cluster: LocalCluster, experiment_id: int) -> Trial:
    (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
    return trial


def reports(cluster: LocalCluster, experiment_id: int, group: str) -> dict[int, Any]:
    """By steps: the metrics, and those of each batch."""
    found = only_trial(cluster, experiment_id).iter_metrics(group)
    return {one.steps_completed: (one.metrics, one.batch_metrics) for one in found}


def check_interrupted(
    cluster: LocalCluster, unbroken: int, broken: int, go: Path, processes: int
) -> None:
    """Interrupts the experiment ``broken``. It must end with the metrics of ``unbroken``, bit for bit.

    Its first leg prints "pausable" in each process and waits for its pause, a later one prints "held" with
    the process' number and waits for the file ``go``.
    """
    assert cluster.wait(unbroken) == "COMPLETED", cluster.logs(unbroken)
    cluster.wait_for_lines(broken, "pausable", processes)
    cluster.det("experiment", "pause", str(broken))
    until("a checkpoint", lambda: cluster.trials(broken)[0]["checkpointCount"])
    cluster.det("experiment", "activate", str(broken))
    lines = cluster.wait_for_lines(broken, "held", processes)
    held = [int(line.split()[-1]) for line in lines]
    os.kill(held[-1], signal.SIGKILL)
    until("none of them", lambda: [pid for pid in held if psutil.pid_exists(pid)], equals=[])
    go.touch()
    assert cluster.wait(broken) == "COMPLETED", cluster.logs(broken)
    assert len(re.findall("going on after", cluster.logs(broken))) >= 2
    assert cluster.trials(broken)[0]["restarts"] == 1
    for group in ("training", "validation"):
        found, expected = reports(cluster, broken, group), reports(cluster, unbroken, group)
        assert list(found) == list(expected)
        other = {
            step: (found[step], expected[step]) for step in found if found[step] != expected[step]
        }
        assert not other, f"{group}, found and expected by steps: {other}"
