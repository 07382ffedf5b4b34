"""From Enter on `det flow run` (one trivial trial, cluster up) to the first line of user code."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.cluster import cluster

ROUNDS = 7

SCRIPT = """import time
print("first line at", time.time(), flush=True)
"""

CONFIG = """name: first-line
entrypoint: python3 script.py
searcher: {name: single, metric: x, max_length: 1}
hyperparameters: {}
max_restarts: 0
"""


def main() -> None:
    with cluster() as running, tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        (model / "script.py").write_text(SCRIPT)
        config = Path(folder) / "config.yaml"
        config.write_text(CONFIG)
        waits = []
        for number in range(1, ROUNDS + 1):
            enter = time.time()
            running.det("flow", "run", str(config), str(model), check=False)
            logs = running.det("experiment", "logs", str(number)).stdout
            line = next(row for row in logs.splitlines() if "first line at" in row)
            waits.append(float(line.rsplit(" ", 1)[1]) - enter)
    print(
        f"Enter to first user line: {waits[0]:.2f} s the first time, then median"
        f" {statistics.median(waits[1:]):.2f} s (min {min(waits):.2f}, max {max(waits):.2f})"
    )


if __name__ == "__main__":
    main()
