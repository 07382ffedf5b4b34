"""Runs a script as a trial of the benchmark's cluster and gives what it printed as JSON."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster

CONFIG = """name: benchmark
entrypoint: python3 script.py
searcher: {name: single, metric: x, max_length: 1}
hyperparameters: {}
max_restarts: 0
"""


def run(running: Cluster, script: str) -> dict[str, Any]:
    """The last JSON object that ``script`` printed. Raises SystemExit with its log if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        (model / "script.py").write_text(script)
        config = Path(folder) / "config.yaml"
        config.write_text(CONFIG)
        done = running.det("flow", "run", str(config), str(model), "--json", check=False)
    experiment = json.loads(done.stdout)["experiment"]["id"]
    logs = running.det("experiment", "logs", str(experiment)).stdout
    found = [line[line.index("{") :] for line in logs.splitlines() if "{" in line]
    if not found:
        raise SystemExit(logs)
    result: dict[str, Any] = json.loads(found[-1])
    return result
