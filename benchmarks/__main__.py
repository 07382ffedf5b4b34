"""`python -m benchmarks [name …]`: every benchmark, or those named, one after the other.

One that fails does not keep the next ones from running; the last line names it, and the exit code is 1.
"""

from __future__ import annotations

import importlib
import sys
import traceback

NAMES = [
    "report_cost",
    "profiler_cost",
    "ingest",
    "log_ingest",
    "downloads",
    "people.reading",
    "dear_reads",
    "pages",
    "reconciler",
    "active_experiments",
    "scheduler",
    "submission",
    "week",
    "cluster_up",
    "first_line",
    "mounts",
    "tasks.first_byte",
    "tasks.shell_prompt",
    "tasks.jupyterlab_page",
    "tasks.many",
    "trivial_trials",
    "prefect_calls",
    "idle",
    "recovery",
    "kubernetes.many_pods",
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
    chosen = names or NAMES
    failed: list[str] = []
    for name in chosen:
        print(f"== {name}", flush=True)
        try:
            importlib.import_module(f"benchmarks.{name}").main()
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and error.code in (None, 0):
                continue
            traceback.print_exc(file=sys.stdout)
            failed.append(name)
    if failed:
        print(f"== {len(failed)} of {len(chosen)} failed: {', '.join(failed)}", flush=True)
        raise SystemExit(1)
    print(f"== all {len(chosen)} done" if len(chosen) > 1 else "== done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
