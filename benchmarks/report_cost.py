"""What `report_training_metrics` costs the training loop, on the cluster: one call by kind of values,
and a call after each step of 1 ms as a share of the step: wall time, CPU of the training loop's thread,
and CPU of the whole process with its threads that encode, send, and write for TensorBoard."""

from __future__ import annotations

from benchmarks.cluster import cluster
from benchmarks.in_trial import run

SCRIPT = """
import json, statistics, time
import numpy, torch
import determined as det
from determined.core import _tensorboard

# As much of it in every block: every 10 s would hit some.
_tensorboard.INTERVAL = 0.25

CALLS = 3000
METRICS = {
    "10 floats": {f"m{i}": 0.5 + i for i in range(10)},
    "10 numpy scalars": {f"m{i}": numpy.float32(i) for i in range(10)},
    "10 torch scalars": {f"m{i}": torch.tensor(float(i)) for i in range(10)},
    "100 floats": {f"m{i}": 0.5 + i for i in range(100)},
}
METRICS3 = {"loss": 0.5, "accuracy": 0.25, "lr": 0.125}
STEPS, BLOCKS = 1000, 7
CLOCKS = {
    "wall": time.perf_counter,
    "thread CPU": time.thread_time,
    "process CPU": time.process_time,
}
result = {"calls": {}, "steps": {}}
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
        result["calls"][name] = [
            1e6 * statistics.median(costs), 1e6 * sorted(costs)[int(0.99 * CALLS)]]

    def work(rounds):
        x = 0
        for i in range(rounds):
            x += i * i
        return x

    # Rounds of pure Python, which holds the interpreter's lock: the worst case for other threads.
    start = time.perf_counter()
    work(2_000_000)
    rounds = int(2_000_000 * 0.001 / (time.perf_counter() - start))
    kinds = {"none": {}, "3": METRICS3, "10": METRICS["10 floats"]}
    taken = {kind: [] for kind in kinds}
    for _ in range(BLOCKS):
        for kind, metrics in kinds.items():
            begun = [clock() for clock in CLOCKS.values()]
            for _ in range(STEPS):
                work(rounds)
                if metrics:
                    step += 1
                    core_context.train.report_training_metrics(step, metrics)
            taken[kind].append(
                [clock() - at for clock, at in zip(CLOCKS.values(), begun)])
            # What is left must not fall into the next block.
            core_context.train._reporter.flush()
            core_context.train._tensorboard.upload()
    for index, clock in enumerate(CLOCKS):
        base = statistics.median(one[index] for one in taken["none"])
        result["steps"][clock] = {kind: statistics.median(one[index] for one in taken[kind]) / base
            for kind in kinds if kind != "none"}
    result["step_us"] = 1e6 * statistics.median(one[0] for one in taken["none"]) / STEPS
print(json.dumps(result))
"""


def main() -> None:
    with cluster() as running:
        found = run(running, SCRIPT)
    for name, (median, p99) in found["calls"].items():
        print(f"report_training_metrics, {name}: median {median:.1f} us, 99 % {p99:.0f} us")
    for clock, ratios in found["steps"].items():
        for count, ratio in ratios.items():
            print(
                f"a report of {count} floats after each step of {found['step_us']:.0f} us: "
                f"{100 * (ratio - 1):+.1f} % of {clock} time"
            )


if __name__ == "__main__":
    main()
