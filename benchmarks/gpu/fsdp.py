"""The example of FSDP on this machine's GPUs, over NCCL: ``python -m benchmarks.gpu.fsdp``.

On a local cluster whose slots are the GPUs, one trial with a process on each of them is paused, resumed, and
loses a process to SIGKILL; its losses must be those of an unbroken one, bit for bit. It takes some minutes
and no network. Without a GPU it does the same in two processes on CPUs, over gloo.
"""

from __future__ import annotations

import time
from pathlib import Path

from determined_deployments.local import slots
from tests.integration.test_interrupted import check_fsdp
from tests.local_cluster import LocalCluster
from tests.memory_folder import memory_folder

MOST = 8


def main() -> None:
    """Prints what it found. Raises AssertionError when losses differ, or a trial does not end."""
    gpus = slots.gpus()
    processes = min(len(gpus), MOST) or 2
    begin = time.monotonic()
    with memory_folder("determined-fsdp-") as folder:
        cluster = LocalCluster.in_directory(Path(folder), torch=True)
        try:
            cluster.up("--slots", str(processes))
            check_fsdp(cluster, Path(folder), processes)
        finally:
            cluster.end()
    where = "GPU(s), NCCL" if gpus else "processes on CPUs, gloo"
    took = time.monotonic() - begin
    print(
        f"{processes} {where}: paused, killed, resumed: the same losses, bit for bit ({took:.0f} s)"
    )


if __name__ == "__main__":
    main()
