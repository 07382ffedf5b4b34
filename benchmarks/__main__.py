"""`python -m benchmarks [name …]`: every benchmark, or those named, one after the other."""

from __future__ import annotations

import importlib
import sys

NAMES = [
    "report_cost",
    "profiler_cost",
    "ingest",
    "log_ingest",
    "reconciler",
    "scheduler",
    "cluster_up",
    "first_line",
    "trivial_trials",
    "idle",
    "recovery",
    "training",
    "training.launch",
    "search.engine",
    "search.offline",
    "search.digits",
]


def main(names: list[str]) -> None:
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise SystemExit(f"no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES)}")
    for name in names or NAMES:
        print(f"== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
