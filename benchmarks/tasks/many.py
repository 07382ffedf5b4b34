"""``python -m benchmarks.tasks.many [--notebooks N] [--lab N]``: many notebooks at once on artificial slots.

Memory of the service, the proxy and the agent before, with all of them open, and after they were killed; what
is left then. ``--lab``: how many of them are JupyterLab; in the place of the others runs a small server,
through the same kind of task, because a hundred JupyterLabs want 15 GB and six minutes of a core each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg

from benchmarks.cluster import Cluster, data_dir
from determined.common.api import Session, authentication
from determined_deployments.local import daemon, databases
from determined_deployments.local import state as states
from determined_deployments.local.layout import Layout

NOTEBOOKS, LAB = 100, 10
AT_ONCE = 4
"""Notebooks that start at the same time: the machine has few cores."""
SECONDS = 900.0
SETTLE = 8.0
"""The agent asks about what has ended, the proxy sweeps."""

# Answers what the task and the proxy ask of JupyterLab.
SMALL = """
import asyncio, os, sys
options = dict(one[2:].split("=", 1) for one in sys.argv[1:] if "=" in one)
base = options["ServerApp.base_url"]
async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode()
            body = b"[]" if "/api/" in head.split()[1] else b"{}"
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def serve_all():
    where = options["ServerApp.ip"], int(options["ServerApp.port"])
    await (await asyncio.start_server(serve, *where)).serve_forever()
def main():
    asyncio.run(serve_all())
"""


@dataclass(frozen=True)
class Footprint:
    """What the processes of the cluster use. ``memory``: bytes by component, the service's without proxy."""

    memory: dict[str, int]
    descriptors: dict[str, int]


def look(cluster: Cluster) -> Footprint:
    """The service, the proxy, and the agent with its zygotes, but without what they run for tasks."""
    groups: dict[str, list[psutil.Process]] = {"service": [], "proxy": [], "agent": []}
    for name, tree in cluster.processes().items():
        for process in tree:
            with contextlib.suppress(psutil.Error):
                if "determined_service.proxy.server" in process.cmdline():
                    groups["proxy"].append(process)
                elif name == "service" or (name == "agent" and not _is_for_task(process)):
                    groups[name].append(process)
    memory, descriptors = {}, {}
    for name, found in groups.items():
        memory[name] = sum(process.memory_full_info().pss for process in found)
        descriptors[name] = sum(process.num_fds() for process in found)
    return Footprint(memory, descriptors)


def _is_for_task(process: psutil.Process) -> bool:
    """Supervisors, and whatever they started."""
    return any(one.name() == "leg" for one in (process, *process.parents()))


def for_tasks(cluster: Cluster) -> list[psutil.Process]:
    """The processes of all tasks."""
    state = states.load(Layout(cluster.data_dir))
    assert state is not None
    found = []
    for process in daemon.members(state.marker):
        with contextlib.suppress(psutil.Error):
            if _is_for_task(process) or "DET_TASK_ID" in process.environ():
                found.append(process)
    return found


def left_over(cluster: Cluster) -> dict[str, int]:
    """What notebooks have on the machine and in the database."""
    state = states.load(Layout(cluster.data_dir))
    assert state is not None
    agent = cluster.data_dir / "agent/allocations"
    ports = {
        one.laddr.port
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and 2600 <= one.laddr.port <= 3500
    }
    queries = {
        "rows of ports": "SELECT count(*) FROM allocation_ports",
        "rows of slots": "SELECT count(*) FROM allocation_resources WHERE state <> 'TERMINATED'",
        "live allocations": "SELECT count(*) FROM allocations WHERE state <> 'TERMINATED'",
        "tokens of tasks": "SELECT count(*) FROM allocations WHERE token IS NOT NULL",
        "tickets": "SELECT count(*) FROM task_visits WHERE ticket_hash IS NOT NULL",
        "logins of browsers": "SELECT count(*) FROM task_visits WHERE cookie_hash IS NOT NULL",
    }
    found = {
        "processes of tasks": len(for_tasks(cluster)),
        "ports 2600 to 3500": len(ports),
        "directories of the agent": len(list(agent.iterdir())) if agent.is_dir() else 0,
        "temporary directories": len(list(Path(tempfile.gettempdir()).glob("det-????????????"))),
    }
    with psycopg.connect(databases.url(state, "determined")) as connection:
        for name, query in queries.items():
            row = connection.execute(query).fetchone()
            assert row is not None
            found[name] = int(row[0])
    return found


@contextlib.contextmanager
def running(slots: int) -> Iterator[Cluster]:
    """A cluster with so many artificial slots."""
    with data_dir() as env:
        command = ["deploy", "local", "cluster-up", "--slots", str(slots)]
        done = subprocess.run(
            [sys.executable, "-m", "determined.cli", *command],
            env=env,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        yield Cluster(Path(env["DET_DATA_DIR"]), env)


class Notebooks:
    """Launches notebooks, opens the page of each and a connection that stays, kills them all."""

    def __init__(self, session: Session, stand_in: Path) -> None:
        self._session = session
        self._stand_in = stand_in
        self._open: list[asyncio.StreamWriter] = []
        self.ids: list[str] = []

    def _launch(self, lab: bool) -> str:
        variables = [] if lab else [f"PYTHONPATH={self._stand_in}"]
        config: dict[str, Any] = {"environment": {"environment_variables": variables}}
        return str(
            self._session.post("/api/v1/notebooks", json={"config": config})["notebook"]["id"]
        )

    async def start(self, count: int, lab: int) -> None:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with places:
                self.ids.append(task_id := await asyncio.to_thread(self._launch, number < lab))
                await self._visit(task_id)

        await asyncio.gather(*(one(number) for number in range(count)))

    async def _visit(self, task_id: str) -> None:
        end = time.monotonic() + SECONDS
        ticket = {"port": "", "path": "/"}
        while True:
            shown = await asyncio.to_thread(self._session.get, f"/api/v1/notebooks/{task_id}")
            state = shown["notebook"]["state"]
            if state == "STATE_RUNNING":
                break
            if state == "STATE_TERMINATED" or time.monotonic() > end:
                raise SystemExit(f"notebook {task_id}: {state} {shown['notebook']['exitStatus']}")
            await asyncio.sleep(0.5)
        # As a browser: the address logs in; then a connection that stays, as a page's does.
        made = await asyncio.to_thread(
            self._session.post, f"/api/v1/tasks/{task_id}/visits", json=ticket
        )
        way_in = urlsplit(str(made["url"]))
        token = str(shown["notebook"]["serviceAddress"]).partition("token=")[2]
        reader, writer = await asyncio.open_connection("127.0.0.1", way_in.port)
        cookie = ""
        for path in (
            f"{way_in.path}?{way_in.query}",
            f"/proxy/{task_id}/api/kernels?token={token}",
        ):
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {way_in.netloc}\r\n{cookie}\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = dict(line.partition(": ")[::2] for line in head.lower().splitlines())
            await reader.readexactly(int(lines.get("content-length", "0")))
            if found := re.search(r"(?i)set-cookie: ([^;]+)", head):
                cookie = f"Cookie: {found[1]}\r\n"
        if " 200 " not in head.splitlines()[0]:
            raise SystemExit(f"notebook {task_id}: {head.splitlines()[0]}")
        self._open.append(writer)

    async def end(self) -> None:
        """Returns when the service has heard of the end of each."""
        for task_id in self.ids:
            await asyncio.to_thread(self._session.post, f"/api/v1/notebooks/{task_id}/kill")
        end = time.monotonic() + SECONDS
        while True:
            shown = await asyncio.to_thread(self._session.get, "/api/v1/notebooks?limit=-1")
            live = [one["id"] for one in shown["notebooks"] if one["state"] != "STATE_TERMINATED"]
            if not live:
                break
            if time.monotonic() > end:
                raise SystemExit(f"{len(live)} notebooks do not end")
            await asyncio.sleep(0.5)
        for writer in self._open:
            writer.close()


def _print(name: str, usage: Footprint, tasks: list[psutil.Process]) -> None:
    memory = 0
    for process in tasks:
        with contextlib.suppress(psutil.Error):
            memory += process.memory_full_info().pss
    parts = [
        f"{part} {usage.memory[part] / 1e6:6.0f} MB {usage.descriptors[part]:4d} descriptors"
        for part in usage.memory
    ]
    print(
        f"{name:8} {' | '.join(parts)} | tasks {len(tasks):4d} processes {memory / 1e6:6.0f} MB",
        flush=True,
    )


async def _measure(cluster: Cluster, count: int, lab: int, stand_in: Path) -> None:
    state = states.load(Layout(cluster.data_dir))
    assert state is not None
    password = state.passwords["determined"]
    token = authentication.new_token(state.master_url, "determined", password)
    session = Session(state.master_url, token)
    # What only the first notebook makes (the proxy's process, connections of the database) is no growth.
    first = Notebooks(session, stand_in)
    await first.start(1, lab=0)
    await first.end()
    await asyncio.to_thread(cluster.settle)
    nothing = left_over(cluster)
    _print("before", look(cluster), for_tasks(cluster))
    many = Notebooks(session, stand_in)
    began, spent = time.monotonic(), cluster.cpu_seconds()
    await many.start(count, lab)
    seconds = time.monotonic() - began
    more = {name: total - spent.get(name, 0.0) for name, total in cluster.cpu_seconds().items()}
    _print("during", look(cluster), for_tasks(cluster))
    print(
        f"         {count} notebooks ({lab} JupyterLab) open after {seconds:.0f} s; CPU: "
        + ", ".join(f"{name} {used:.0f} s" for name, used in more.items())
    )
    during = left_over(cluster)
    began = time.monotonic()
    await many.end()
    seconds = time.monotonic() - began
    await asyncio.sleep(SETTLE)
    await asyncio.to_thread(cluster.settle)
    _print("after", look(cluster), for_tasks(cluster))
    print(f"         all killed after {seconds:.0f} s")
    after = left_over(cluster)
    for name in nothing:
        print(
            f"{name:26} before {nothing[name]:4d}  during {during[name]:4d}  after {after[name]:4d}"
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notebooks", type=int, default=NOTEBOOKS)
    parser.add_argument("--lab", type=int, default=LAB)
    given = parser.parse_args([] if arguments is None else arguments)
    lab = given.lab if importlib.util.find_spec("jupyterlab") is not None else 0
    with tempfile.TemporaryDirectory(prefix="determined-bench-lab-") as name:
        package = Path(name) / "jupyterlab"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "labapp.py").write_text(SMALL)
        with running(given.notebooks) as cluster:
            asyncio.run(_measure(cluster, given.notebooks, lab, Path(name)))


if __name__ == "__main__":
    main(sys.argv[1:])
