"""What one user does to all others by reading what he has stored, and somebody without a login by half-sent
requests: how late `/health` is meanwhile, and the service's memory before, at most and after.

A server that does nothing is asked beside it: what that takes is the machine's doing.

Each attack runs against a service of its own. ``DET_DEAR_NAMES``: names of files in each of six checkpoints
(600,000 were allowed once; what was stored then is still read).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import psutil
import psycopg
import yaml

from benchmarks.stalls import Service, service

NAMES = int(os.environ.get("DET_DEAR_NAMES", "100000"))
CHECKPOINTS = 6
LINES = 168
READERS = 8
HALF_REQUESTS = 20_000
CONFIG = """
name: dear
searcher: {name: adaptive_asha, metric: loss, time_metric: batches, max_time: 5, max_trials: 9}
checkpoint_storage: {type: shared_fs, host_path: /tmp}
"""
# A process of its own: what it does with the answer must not slow the probe down.
_READER = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": sys.argv[2]})
size = 0
with urllib.request.urlopen(request, timeout=300) as answer:
    while piece := answer.read(1 << 16):
        size += len(piece)
print(size)
"""
# Holds sys.argv[2] connections with half a head until its standard input ends; the server may end some.
_HALF = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
for _ in range(int(sys.argv[2])):
    try:
        sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 30)
        sock.sendall(b"GET /health HTTP/1.1\\r\\nHost:")
        held.append(sock)
    except OSError:
        pass
print(len(held), flush=True)
sys.stdin.read()
"""
_IDLE = """
import asyncio
async def answer(reader, writer):
    while await reader.readuntil(b"\\r\\n\\r\\n"):
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


class Probe(threading.Thread):
    """Asks for `/health` and that server every 20 ms, and looks at the service's memory."""

    def __init__(self, running: Service) -> None:
        super().__init__(daemon=True)
        self.url = running.url
        self.process = running.processes()[0]
        self.before = self.rss()
        self.most = self.before
        self.waits: list[float] = []
        self.idle_waits: list[float] = []
        self.done = threading.Event()
        command = [sys.executable, "-c", _IDLE]
        self.idle = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def rss(self) -> float:
        """MB of the service and of its children."""
        found = 0
        for one in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += one.memory_info().rss
        return found / 2**20

    def run(self) -> None:
        assert self.idle.stdout is not None
        idle = f"http://127.0.0.1:{int(self.idle.stdout.readline())}/health"
        with httpx.Client(timeout=300) as client:
            while not self.done.wait(0.02):
                for url, waits in (
                    (f"{self.url}/health", self.waits),
                    (idle, self.idle_waits),
                ):
                    began = time.monotonic()
                    client.get(url).raise_for_status()
                    waits.append((time.monotonic() - began) * 1000)
                self.most = max(self.most, self.rss())
        self.idle.kill()
        self.idle.wait()


@contextlib.contextmanager
def probed(running: Service, name: str) -> Iterator[None]:
    probe = Probe(running)
    probe.start()
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    time.sleep(1)
    probe.done.set()
    probe.join()
    waits = sorted(probe.waits)
    print(
        f"{name}: {took:.1f} s; /health {len(waits)} answers, median {statistics.median(waits):.0f} ms, "
        f"99 % {waits[int(len(waits) * 0.99)]:.0f} ms, longest {waits[-1]:.0f} ms (of a server that does "
        f"nothing {max(probe.idle_waits):.0f} ms); "
        f"{probe.before:.0f} MB before, {probe.most:.0f} at most, {probe.rss():.0f} after",
        flush=True,
    )


def read_at_once(client: httpx.Client, path: str, readers: int = READERS) -> int:
    """Bytes that all readers got."""
    command = [
        sys.executable,
        "-c",
        _READER,
        f"{client.base_url}{path}",
        client.headers["Authorization"],
    ]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(readers)]
    answers = [one.communicate()[0].strip() for one in running]
    return sum(int(answer or 0) for answer in answers)


def trial_of(client: httpx.Client) -> tuple[int, int, str]:
    """An unmanaged trial: its experiment, its id and its task."""
    body = {"config": CONFIG, "unmanaged": True}
    made = client.put("/api/v1/experiments/by-external-id/e", json=body).raise_for_status()
    experiment = made.json()["experiment"]["id"]
    new = {"experimentId": experiment, "hparams": {}, "unmanaged": True}
    body = {"createTrialRequest": new, "externalTrialId": "t"}
    trial = client.put("/api/v1/trials", json=body).raise_for_status().json()["trial"]
    return experiment, trial["id"], trial["taskId"]


def checkpoints(running: Service, database: str) -> None:
    client = running.client()
    experiment, trial, task = trial_of(client)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            """
            INSERT INTO checkpoints (uuid, state, task_id, experiment_id, trial_id, steps_completed,
                                     resources, checksums, size, metadata)
            SELECT gen_random_uuid(), 'COMPLETED', %s, %s::int, %s::int, n,
                   (SELECT jsonb_object_agg('file-' || md5(f::text), 1) FROM generate_series(1, %s) f), '{}',
                   1, '{}'
            FROM generate_series(1, %s) n
            """,
            (task, experiment, trial, NAMES, CHECKPOINTS),
        )
    with probed(
        running, f"{CHECKPOINTS} checkpoints of {NAMES:,} names, {READERS} readers of the list"
    ):
        size = read_at_once(client, f"/api/v1/experiments/{experiment}/checkpoints?limit=-1")
    print(f"  {size / 2**20:.0f} MB read")


TEXT = "convert_to(repeat(md5(n::text), 32768), 'UTF8')"
BINARY = f"decode(repeat('ff', {2**20}), 'hex')"
"""A line that is not UTF-8: each of its bytes is escaped."""


def logs(running: Service, database: str) -> None:
    lines(running, database, f"{LINES} lines of 1 MB", TEXT)


def binary_logs(running: Service, database: str) -> None:
    lines(running, database, f"{LINES} lines of 1 MB that are not UTF-8", BINARY)


def lines(running: Service, database: str, name: str, line: str) -> None:
    client = running.client()
    _, trial, task = trial_of(client)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            f"""
            INSERT INTO task_logs (task_id, timestamp, log)
            SELECT %s, now(), {line} FROM generate_series(1, %s) n
            """,
            (task, LINES),
        )
    with probed(running, f"{name}, {READERS} readers"):
        size = read_at_once(client, f"/api/v1/trials/{trial}/logs")
    print(f"  {size / 2**20:.0f} MB read")


def grid(running: Service, database: str) -> None:
    client = running.client()
    ranges = {f"r{n}": {"type": "categorical", "vals": list(range(10))} for n in range(4)}
    constants = {f"c{n}": n for n in range(15_000)}
    config = {
        "name": "grid",
        "entrypoint": "true",
        "searcher": {
            "name": "grid",
            "metric": "loss",
            "max_length": {"batches": 1},
            "max_concurrent_trials": 10_000,
        },
        "hyperparameters": {**ranges, **constants},
        "checkpoint_storage": {"type": "shared_fs", "host_path": "/tmp"},
    }
    with probed(running, "a grid of 10,000 trials with 15,000 constants"):
        answer = client.post("/api/v1/experiments", json={"config": yaml.safe_dump(config)})
    print(f"  {answer.status_code} {answer.text[:300]}")


def previews(running: Service, database: str) -> None:
    client = running.client()
    config = {
        "searcher": {
            "name": "adaptive_asha",
            "metric": "loss",
            "max_trials": 100_000,
            "max_length": {"batches": 10_000},
        },
        "hyperparameters": {
            f"x{n}": {"type": "double", "minval": 0, "maxval": 1} for n in range(50)
        },
    }
    with probed(running, "a preview of 100,000 trials with 50 hyperparameters"):
        answer = client.post("/api/v1/preview-hp-search", json={"config": config})
    print(f"  {answer.status_code} {answer.text[:200]}")


def half_requests(running: Service, database: str) -> None:
    port = str(httpx.URL(running.url).port)
    with probed(running, f"{HALF_REQUESTS:,} half-sent requests, for 35 s"):
        command = [sys.executable, "-c", _HALF, port, str(HALF_REQUESTS // 4)]
        holders = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        held = sum(int(one.stdout.readline()) for one in holders if one.stdout is not None)
        # Longer than a head has.
        time.sleep(35)
        for one in holders:
            one.communicate()
    print(f"  {held} connections were opened")


ATTACKS: tuple[Callable[[Service, str], None], ...] = (
    checkpoints,
    logs,
    binary_logs,
    grid,
    previews,
    half_requests,
)


def main() -> None:
    """Prints a line for each attack."""
    for attack in ATTACKS:
        with service() as running:
            attack(running, running.database)


if __name__ == "__main__":
    main()
