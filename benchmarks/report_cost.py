"""What one `report_training_metrics` costs the training loop, on the cluster, by kind of values."""

from __future__ import annotations

from benchmarks.cluster import cluster
from benchmarks.in_trial import run

SCRIPT = """
import json, statistics, time
import numpy, torch
import determined as det

CALLS = 3000
METRICS = {
    "10 floats": {f"m{i}": 0.5 + i for i in range(10)},
    "10 numpy scalars": {f"m{i}": numpy.float32(i) for i in range(10)},
    "10 torch scalars": {f"m{i}": torch.tensor(float(i)) for i in range(10)},
    "100 floats": {f"m{i}": 0.5 + i for i in range(100)},
}
result = {}
with det.core.init() as core_context:
    step = 0
    for name, metrics in METRICS.items():
        costs = []
        for _ in range(CALLS):
            step += 1
            start = time.perf_counter()
            core_context.train.report_training_metrics(step, metrics)
            costs.append(time.perf_counter() - start)
            time.sleep(0.0005)  # the step that is being measured, not a queue that fills
        result[name] = [1e6 * statistics.median(costs), 1e6 * sorted(costs)[int(0.99 * CALLS)]]
print(json.dumps(result))
"""


def main() -> None:
    with cluster() as running:
        for name, (median, p99) in run(running, SCRIPT).items():
            print(f"report_training_metrics, {name}: median {median:.1f} us, 99 % {p99:.0f} us")


if __name__ == "__main__":
    main()
