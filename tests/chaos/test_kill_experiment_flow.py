"""`kill -9` of the flow that drives a search: the same trials, each done once."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from tests.local_cluster import LocalCluster

SCRIPT = """
import time
import determined as det
info = det.get_cluster_info()
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        time.sleep(0.3)
        core_context.train.report_validation_metrics(op.length, {"x": info.trial.hparams["a"]})
        op.report_completed(info.trial.hparams["a"])
"""

CONFIG = """
name: survivor
entrypoint: python3 script.py
hyperparameters:
  a: {type: double, minval: 0, maxval: 1}
searcher: {name: random, metric: x, max_trials: 12, max_concurrent_trials: 2, max_length: 1}
reproducibility: {experiment_seed: 5}
max_restarts: 0
"""


def flow_processes(cluster: LocalCluster, experiment: int) -> list[psutil.Process]:
    """The process that runs the experiment's flow, found by the environment it was given."""
    run_id = cluster.describe(experiment)["flowRunId"]
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT__FLOW_RUN_ID") == run_id or any(
                run_id in word for word in process.cmdline()
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_a_killed_search_goes_on(cluster: LocalCluster, tmp_path: Path) -> None:
    experiment = cluster.submit(tmp_path, CONFIG, script_py=SCRIPT)
    killed = 0
    for _ in range(3):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            processes = flow_processes(cluster, experiment)
            if processes:
                break
            time.sleep(0.1)
        for process in processes:
            process.kill()
            killed += 1
        time.sleep(1.0)
    assert killed >= 2
    assert cluster.wait(experiment, timeout=200) == "COMPLETED"

    from determined_searchers import simulate

    expected = simulate(cluster.describe(experiment)["config"]).trials
    found = cluster.trials(experiment)
    assert sorted((t["hparams"]["a"], t["seed"]) for t in found) == sorted(
        (t.hparams["a"], t.seed) for t in expected
    )
    assert {trial["restarts"] for trial in found} == {0}
