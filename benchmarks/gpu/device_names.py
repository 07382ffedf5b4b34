"""How a leg finds the GPUs that it is told of: ``PYTHONPATH=harness python -m benchmarks.gpu.device_names``.

For each GPU of the machine: its number as :func:`determined.common.nvml.cuda_names` has it, and the uuid of
what a process sees that starts with it, which must be the same. Then what the question costs a leg.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from determined.common import nvml

_CHILD = "import torch; print('GPU-' + str(torch.cuda.get_device_properties(0).uuid))"


def main() -> None:
    """Prints a line for each GPU, and one for the time. Raises SystemExit when there is none."""
    uuids = nvml.device_uuids()
    if not uuids:
        raise SystemExit("no NVIDIA GPU found")
    for uuid in uuids:
        (name,) = nvml.cuda_names([uuid])
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": name, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        done = subprocess.run(
            [sys.executable, "-c", _CHILD], env=env, capture_output=True, text=True
        )
        seen = done.stdout.strip() or done.stderr[-200:]
        print(
            f"{uuid}: CUDA_VISIBLE_DEVICES={name} shows {seen}: {'same' if seen == uuid else 'OTHER'}"
        )
    gone = nvml.cuda_names(["GPU-00000000-0000-0000-0000-000000000000"])
    print(f"one that is not there stays {gone[0]}")
    took = []
    for _ in range(20):
        began = time.perf_counter()
        nvml.cuda_names(uuids)
        took.append((time.perf_counter() - began) * 1000)
    print(f"the question takes {statistics.median(took):.1f} ms (longest {max(took):.1f})")


if __name__ == "__main__":
    main()
