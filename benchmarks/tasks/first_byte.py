"""From Enter on `det cmd run` (cluster up, agent warm) to the first byte of the command's output."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from benchmarks.cluster import cluster

ROUNDS = 9


def main() -> None:
    waits, spent = [], []
    with cluster() as running:
        for number in range(ROUNDS + 1):
            before = os.times()
            enter = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "determined.cli", "cmd", "run", "echo", "x"],
                env=running.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert process.stdout is not None
            first = process.stdout.read(1)
            wait = time.perf_counter() - enter
            process.stdout.read()
            assert (process.wait(), first) == (0, b"x")
            after = os.times()
            if number:  # the first one logs in
                waits.append(wait)
                spent.append(
                    after.children_user + after.children_system
                    - before.children_user - before.children_system
                )  # fmt: skip
    print(
        f"Enter to the first byte of `det cmd run echo x`: median {statistics.median(waits):.2f} s"
        f" (min {min(waits):.2f}, max {max(waits):.2f}); CPU of det itself {statistics.median(spent):.2f} s"
    )


if __name__ == "__main__":
    main()
