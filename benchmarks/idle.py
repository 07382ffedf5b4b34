"""What a cluster without work costs: CPU of one core and memory, by process, over a minute."""

from __future__ import annotations

import contextlib
import time

import psutil

from benchmarks.cluster import Cluster, cluster

SETTLE_SECONDS = 20.0
SECONDS = 60.0


def memory(running: Cluster) -> dict[str, tuple[float, float]]:
    """MB by component: resident (shared pages counted in each process), proportional (once)."""
    sizes = {}
    for name, tree in running.processes().items():
        rss = pss = 0.0
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                full = process.memory_full_info()
                rss += full.rss / 2**20
                pss += full.pss / 2**20
        sizes[name] = (rss, pss)
    return sizes


def main() -> None:
    with cluster() as running:
        time.sleep(SETTLE_SECONDS)
        before = running.cpu_seconds()
        time.sleep(SECONDS)
        after = running.cpu_seconds()
        sizes = memory(running)
    total = 0.0
    for name, (rss, pss) in sizes.items():
        share = 100 * (after[name] - before[name]) / SECONDS
        total += share
        print(
            f"{name:10} {share:5.2f} % of a core, {rss:6.0f} MB resident, {pss:6.0f} MB proportional"
        )
    rss, pss = (sum(size[i] for size in sizes.values()) for i in (0, 1))
    print(
        f"{'all':10} {total:5.2f} % of a core, {rss:6.0f} MB resident, {pss:6.0f} MB proportional"
    )


if __name__ == "__main__":
    main()
