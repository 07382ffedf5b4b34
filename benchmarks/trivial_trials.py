"""64 trials of ten reports and no work, two at a time: wall and CPU time per trial, by process.

`python -m benchmarks.trivial_trials --trials 512 --slots 64`: of others, on so many slots.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from benchmarks.cluster import cluster

TRIALS, SLOTS = 64, 2

SCRIPT = """import determined as det
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        for step in range(1, 11):
            core_context.train.report_training_metrics(step, {"loss": 1.0 / step})
        core_context.train.report_validation_metrics(10, {"x": 0.5})
        op.report_completed(0.5)
"""

CONFIG = """name: trivial
entrypoint: python3 script.py
searcher: {name: random, metric: x, max_trials: %d, max_concurrent_trials: %d, max_length: 10}
hyperparameters: {a: {type: double, minval: 0, maxval: 1}}
max_restarts: 0
"""


def moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--slots", type=int, default=SLOTS)
    given = parser.parse_args([] if arguments is None else arguments)
    count = given.trials
    options = [] if given.slots == SLOTS else ["--slots", str(given.slots)]
    with cluster(*options) as running, tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        (model / "script.py").write_text(SCRIPT)
        config = Path(folder) / "config.yaml"
        config.write_text(CONFIG % (count, given.slots))
        before = running.cpu_seconds()
        running.det("flow", "run", str(config), str(model))
        if count > TRIALS:
            # Prefect is told beside the trials, and later where there are many.
            ended = time.monotonic()
            running.settle(timeout=600.0)
            print(f"quiet {time.monotonic() - ended:.0f} s after the experiment's end")
        after = running.cpu_seconds()
        rows = json.loads(running.det("experiment", "list-trials", "1", "--json").stdout)
        ends = sorted(moment(row["endTime"]) for row in rows)
        start = min(moment(row["startTime"]) for row in rows)
    assert len(ends) == count
    gaps = [late - early for early, late in itertools.pairwise(ends)]
    some = max(16, count // 4)
    early, late = gaps[1 : some + 1], gaps[-some:]
    print(
        f"{count} trials on {given.slots} slots in {ends[-1] - start:.2f} s:"
        f" {(ends[-1] - start) / count:.3f} s a trial"
        f" (first {some}: {sum(early) / len(early):.3f}, last {some}: {sum(late) / len(late):.3f})"
    )
    costs = {name: after[name] - before.get(name, 0.0) for name in after}
    shares = ", ".join(f"{name} {1000 * cost / count:.0f} ms" for name, cost in costs.items())
    print(f"CPU per trial: {1000 * sum(costs.values()) / count:.0f} ms ({shares})")


if __name__ == "__main__":
    main(sys.argv[1:])
