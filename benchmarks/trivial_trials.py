"""64 trials of ten reports and no work, two at a time: wall and CPU time per trial, by process."""

from __future__ import annotations

import itertools
import json
import tempfile
from datetime import datetime
from pathlib import Path

from benchmarks.cluster import cluster

TRIALS = 64

SCRIPT = """import determined as det
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        for step in range(1, 11):
            core_context.train.report_training_metrics(step, {"loss": 1.0 / step})
        core_context.train.report_validation_metrics(10, {"x": 0.5})
        op.report_completed(0.5)
"""

CONFIG = f"""name: trivial
entrypoint: python3 script.py
searcher: {{name: random, metric: x, max_trials: {TRIALS}, max_concurrent_trials: 2, max_length: 10}}
hyperparameters: {{a: {{type: double, minval: 0, maxval: 1}}}}
max_restarts: 0
"""


def moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def main() -> None:
    with cluster() as running, tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        (model / "script.py").write_text(SCRIPT)
        config = Path(folder) / "config.yaml"
        config.write_text(CONFIG)
        before = running.cpu_seconds()
        running.det("flow", "run", str(config), str(model))
        after = running.cpu_seconds()
        rows = json.loads(running.det("experiment", "list-trials", "1", "--json").stdout)
        ends = sorted(moment(row["endTime"]) for row in rows)
        start = min(moment(row["startTime"]) for row in rows)
    assert len(ends) == TRIALS
    gaps = [late - early for early, late in itertools.pairwise(ends)]
    early, late = gaps[1:17], gaps[-16:]
    print(
        f"{TRIALS} trials in {ends[-1] - start:.2f} s: {(ends[-1] - start) / TRIALS:.3f} s a trial"
        f" (first 16: {sum(early) / len(early):.3f}, last 16: {sum(late) / len(late):.3f})"
    )
    costs = {name: after[name] - before.get(name, 0.0) for name in after}
    shares = ", ".join(f"{name} {1000 * cost / TRIALS:.0f} ms" for name, cost in costs.items())
    print(f"CPU per trial: {1000 * sum(costs.values()) / TRIALS:.0f} ms ({shares})")


if __name__ == "__main__":
    main()
