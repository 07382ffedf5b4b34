"""What sampling the machine costs: CPU time of all samplers per sample, as a share of one core."""

from __future__ import annotations

import time

from determined.core import _profiler

SAMPLES = 500


def main() -> None:
    found = {
        "cpu": _profiler.cpu_sampler(),
        "memory": _profiler.memory_sampler(),
        "disk": _profiler.disk_sampler(),
        "network": _profiler.network_sampler(),
        "gpu": _profiler.gpu_sampler(),
    }
    total = 0.0
    for group, sampler in found.items():
        if sampler is None:
            continue
        start = time.process_time()
        for _ in range(SAMPLES):
            sampler()
        cost = (time.process_time() - start) / SAMPLES
        total += cost
        print(f"profiler, {group}: {1e6 * cost:.0f} us of CPU per sample")
    print(f"profiler, all at one sample per second: {100 * total:.3f} % of one core")


if __name__ == "__main__":
    main()
