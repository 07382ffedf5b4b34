"""`kill -9` of the flow that drives a search: the same trials, each done once."""

from __future__ import annotations

import json
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
searcher: {name: random, metric: x, max_trials: 24, max_concurrent_trials: 2, max_length: 1}
reproducibility: {experiment_seed: 5}
max_restarts: 0
"""


def flow_process(cluster: LocalCluster, experiment: int) -> psutil.Process | None:
    """The process that runs the experiment's flow, by the agent's record of it."""
    run_id = cluster.describe(experiment)["flowRunId"]
    for path in (cluster.data_dir / "agent" / "flow_runs").glob("*.json"):
        if run_id and run_id in path.name:
            try:
                return psutil.Process(json.loads(path.read_text())["pid"])
            except (psutil.NoSuchProcess, FileNotFoundError):
                return None
    return None


def test_a_killed_search_goes_on(cluster: LocalCluster, tmp_path: Path) -> None:
    experiment = cluster.submit(tmp_path, CONFIG, script_py=SCRIPT)
    killed: set[int] = set()
    deadline = time.monotonic() + 90
    while len(killed) < 2 and time.monotonic() < deadline:
        process = flow_process(cluster, experiment)
        if process is not None and process.pid not in killed:
            time.sleep(1.0)  # some way into the search
            process.kill()
            killed.add(process.pid)
        time.sleep(0.1)
    assert len(killed) == 2
    assert cluster.wait(experiment, timeout=200) == "COMPLETED"

    from determined_searchers import simulate

    expected = simulate(cluster.describe(experiment)["config"]).trials
    found = cluster.trials(experiment)
    assert sorted((t["hparams"]["a"], t["seed"]) for t in found) == sorted(
        (t.hparams["a"], t.seed) for t in expected
    )
    assert {trial["restarts"] for trial in found} == {0}
