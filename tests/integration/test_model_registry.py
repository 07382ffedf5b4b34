"""The example of the registry on a real cluster: the best of a search, promoted, and loaded by its alias."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.local_cluster import LocalCluster
from tests.waiting import TIMEOUT_S

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(cluster: LocalCluster, script: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "registry" / script)],
        env=cluster.env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example(cluster: LocalCluster) -> None:
    digits = EXAMPLES / "digits"
    search = [f"{digits}/random.yaml", str(digits), "--config", "searcher.max_trials=2"]
    cluster.det("flow", "run", *search, timeout=TIMEOUT_S)
    experiment = max(row["id"] for row in cluster.json("experiment", "list"))
    trials = cluster.json("experiment", "list-trials", str(experiment))
    best = max(trial["searcherMetricValue"] for trial in trials)
    said = run(cluster, "promote.py")
    assert f"digits version 1: accuracy {best:.3f}" in said
    assert "version 1 is the champion" in said
    said = run(cluster, "classify.py")
    assert "digits@champion is version 1, registered by determined" in said
    assert f"accuracy on all 360 validation images: {best:.3f}" in said
    # No better one: it is registered, and the champion stays.
    assert "it stays the champion" in run(cluster, "promote.py")
    refused = cluster.det("experiment", "delete", str(experiment), "--yes", check=False)
    assert refused.returncode == 1
    assert "of model 'digits'" in refused.stderr
    assert "cannot be deleted" in refused.stderr
    cluster.det("model", "delete", "digits")
    cluster.det("experiment", "delete", str(experiment), "--yes", timeout=TIMEOUT_S)
    assert experiment not in [row["id"] for row in cluster.json("experiment", "list")]
