"""What the mounts of a leg cost its start: a process that enters them, again and again.

Three directories, two of them at paths that the machine lacks, and a `/dev/shm`. The aim is 5 ms.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from determined_tasks import mounts

ROUNDS = 40


def main() -> None:
    refusal = mounts.refused()
    if refusal is not None:
        sys.exit(f"nothing can be mounted here: {refusal}")
    with tempfile.TemporaryDirectory() as name:
        times = sorted(_entered(Path(name), number) for number in range(ROUNDS))
    print(
        f"mounts of a leg: {times[0]:.1f} ms at least, {median(times):.1f} ms in the middle of {ROUNDS}"
    )


def _entered(folder: Path, number: int) -> float:
    """Milliseconds."""
    workdir, data = folder / "workdir", folder / "data"
    workdir.mkdir(exist_ok=True)
    data.mkdir(exist_ok=True)
    config = {
        "bind_mounts": [
            {"host_path": str(data), "container_path": path}
            for path in ("/benchmark-absent/data", "/mnt/benchmark-absent", "below")
        ],
        "resources": {"shm_size": "64M"},
    }
    found = mounts.of(config, "python3 train.py", workdir, folder / f"mounts{number}")
    assert found is not None
    found.require(None, "benchmark")
    read, write = os.pipe()
    if os.fork() == 0:
        begin = time.perf_counter()
        found.enter(None, workdir)
        os.write(write, struct.pack("d", time.perf_counter() - begin))
        os._exit(0)
    os.wait()
    os.close(write)
    with os.fdopen(read, "rb") as file:
        return float(struct.unpack("d", file.read())[0]) * 1e3


if __name__ == "__main__":
    main()
