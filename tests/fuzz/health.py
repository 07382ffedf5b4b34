"""``python -m tests.fuzz.health HOST PORT``: how long ``/health`` takes, in ms, until stdin closes.

A separate process, so that the sender of the hostile requests does not delay the measurement. Without a port
it asks an idle server that it starts: the time of its answers is the machine's delay.
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


def _serve_nothing() -> int:
    """A server in a separate process; returns its port. It ends with this process."""
    code = (
        "import uvicorn, fastapi, os\n"
        "from tests.listening import listening\n"
        "app = fastapi.FastAPI()\n"
        "async def health(): return {}\n"
        "app.get('/health')(health)\n"
        "s = listening(); print(s.getsockname()[1], flush=True)\n"
        "import threading, sys\n"
        "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()\n"
        "uvicorn.Server(uvicorn.Config(app, log_level='error')).run(sockets=[s])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    _SERVERS.append(process)
    return int(process.stdout.readline())


_SERVERS: list[subprocess.Popen[str]] = []


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
    """Asks while the block runs; then ``found`` is there, and ``idle`` of the server that does nothing."""

    def __init__(self, host: str, port: int) -> None:
        self._commands = [
            [sys.executable, "-m", __name__, host, str(port)],
            [sys.executable, "-m", __name__, host],
        ]
        self.found: Health | None = None
        self.idle: Health | None = None

    def __enter__(self) -> Watch:
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for command in self._commands
        ]
        return self

    def __exit__(self, *error: object) -> None:
        self.found, self.idle = (
            _summed(process.communicate(timeout=90)[0]) for process in self._processes
        )


def _summed(printed: str) -> Health | None:
    taken = sorted(json.loads(printed or "[]"))
    if not taken:
        return None
    late = sum(one > 50 for one in taken)
    p99 = taken[int(len(taken) * 0.99)]
    return Health(len(taken), statistics.median(taken), p99, taken[-1], late)


if __name__ == "__main__":
    port = int(sys.argv[2]) if len(sys.argv) > 2 else _serve_nothing()
    print(json.dumps(_watch(sys.argv[1], port)))
    for server in _SERVERS:
        server.terminate()
