"""The example of the registry on a real cluster: a trained model, promoted, and loaded by its alias."""

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
    digits = str(EXAMPLES / "digits")
    # One of the space's settings: the example takes the newest search of that name.
    config = [f"{digits}/const.yaml", digits, "--config", "name=digits-random"]
    cluster.det("flow", "run", *config, timeout=280)
    experiment = str(max(row["id"] for row in cluster.json("experiment", "list")))
    assert "version 1 is the champion" in run(cluster, "promote.py")
    said = run(cluster, "classify.py")
    assert "digits@champion is version 1, registered by determined" in said
    assert "accuracy on all 360 validation images: 0.9" in said
    # No better one: it is registered, and the champion stays.
    assert "it stays the champion" in run(cluster, "promote.py")
    refused = cluster.det("experiment", "delete", experiment, "--yes", check=False)
    assert refused.returncode == 1
    assert "of model 'digits'" in refused.stderr
    assert "cannot be deleted" in refused.stderr
    cluster.det("model", "delete", "digits")
    cluster.det("experiment", "delete", experiment, "--yes", timeout=TIMEOUT_S)
    assert int(experiment) not in [row["id"] for row in cluster.json("experiment", "list")]
