"""``python -m tests.fuzz.health HOST PORT SECONDS``: how long ``/health`` takes, in ms, until stdin closes.

A process of its own, so that whoever sends the hostile requests does not hold up the watch.
"""

from __future__ import annotations

import http.client
import json
import select
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

PAUSE_S = 0.02


def _watch(host: str, port: int) -> list[float]:
    connection = http.client.HTTPConnection(host, port, timeout=60)
    taken = []
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        begun = time.perf_counter()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        taken.append((time.perf_counter() - begun) * 1000)
        assert answer.status == 200, answer.status
    return taken


@dataclass(frozen=True)
class Health:
    """Milliseconds."""

    count: int
    median: float
    p99: float
    longest: float
    late: int

    def __str__(self) -> str:
        return (
            f"/health asked {self.count} times: median {self.median:.1f} ms, 99 % "
            f"{self.p99:.1f} ms, longest {self.longest:.1f} ms; {self.late} above 50 ms"
        )


class Watch:
    """Asks while the block runs; then ``found`` is there."""

    def __init__(self, host: str, port: int) -> None:
        self._command = [sys.executable, "-m", __name__, host, str(port)]
        self.found: Health | None = None

    def __enter__(self) -> Watch:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *error: object) -> None:
        printed, _ = self._process.communicate(timeout=90)
        taken = sorted(json.loads(printed or "[]"))
        if taken:
            self.found = Health(
                len(taken),
                statistics.median(taken),
                taken[int(len(taken) * 0.99)],
                taken[-1],
                sum(one > 50 for one in taken),
            )


if __name__ == "__main__":
    print(json.dumps(_watch(sys.argv[1], int(sys.argv[2]))))
