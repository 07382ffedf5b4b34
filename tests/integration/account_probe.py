"""Lists the files and sockets that a process can reach on a cluster's machine; run by test_accounts.py.

``account_probe.py FACTS``: FACTS is a JSON file with paths, ports and process ids. Prints one line,
``probed`` and a JSON object. Needs only Python.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any


def tried(action: Callable[[], object], yes: str) -> str:
    try:
        action()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return yes


def reads(path: str) -> str:
    def read() -> None:
        # Not readable: the first page of a process is not mapped.
        Path(path).open("rb").close()

    return tried(read, "reads")


def lists(path: str) -> str:
    return tried(lambda: list(Path(path).iterdir()), "lists")


def renames(path: Path) -> str:
    def rename() -> None:
        path.rename(path.with_name("mine")).rename(path)

    return tried(rename, "renames")


def answer(url: str, token: str = "") -> str:
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as response:
            return str(response.status)
    except urllib.error.HTTPError as error:
        return str(error.code)


def postgres(port: int) -> str:
    """Connect to Postgres as its superuser, and return its question."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        body = struct.pack("!I", 196608) + b"user\0determined\0database\0determined\0\0"
        connection.sendall(struct.pack("!I", len(body) + 4) + body)
        kind, _, method = struct.unpack("!cII", connection.recv(9))
    assert kind == b"R"
    return "no password" if method == 0 else "wants a password"


def connects(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        return tried(lambda: connection.connect(path), "connects")


def look(facts: dict[str, Any]) -> dict[str, str]:
    data, other, service = facts["data"], facts["trial"], facts["service"]
    token = os.environ.get("DET_SESSION_TOKEN", "")
    return {
        "`cluster.json` (all passwords)": reads(f"{data}/cluster.json"),
        "`service.json`, `agent.json` (their secrets)": " / ".join(
            reads(f"{data}/{name}.json") for name in ("service", "agent")
        ),
        "`logs/` (logs of the components)": reads(f"{data}/logs/agent.log"),
        "`postgres/` (the database's files)": lists(f"{data}/postgres"),
        "Postgres' port, as its superuser": postgres(facts["postgres"]),
        "Postgres' socket": "none" if not facts["postgres_sockets"] else "there is one",
        "service's port, `/health`": answer(f"{service}/health"),
        "service, `/api/v1/experiments`": answer(f"{service}/api/v1/experiments", token),
        "service, `/internal/v1` (agents' routes)": answer(
            f"{service}/internal/v1/experiments/1/search", token
        ),
        "Prefect's port, its API": answer(f"{facts['prefect']}/api/version"),
        "socket of the agent's fork servers": connects(facts["fork_servers"]),
        "`agent/`, `agent/allocations/` (names of what runs)": " / ".join(
            lists(f"{data}/agent{name}") for name in ("", "/allocations")
        ),
        "`agent/model_defs/` (everybody's code)": lists(f"{data}/agent/model_defs"),
        "another trial's code and files": lists(other["workdir"]),
        "another trial's token (`DET_RUN_DIR`)": reads(f"{other['run']}/info/cluster_info.json"),
        "another trial's TMPDIR": lists(other["tmp"]),
        "`checkpoints/` (names)": lists(f"{data}/checkpoints"),
        "another trial's checkpoint": reads(f"{data}/checkpoints/{other['checkpoint']}/weights"),
        "another trial's `/proc/…/environ`, `mem`": " / ".join(
            reads(f"/proc/{other['pid']}/{name}") for name in ("environ", "mem")
        ),
        "the agent's `/proc/…/environ`, `mem`": " / ".join(
            reads(f"/proc/{facts['agent']}/{name}") for name in ("environ", "mem")
        ),
        "a signal to another trial, to the agent": " / ".join(
            tried(lambda pid=pid: os.kill(pid, 0), "sends")  # type: ignore[misc]
            for pid in (other["pid"], facts["agent"])
        ),
        "another trial's checkpoint, renamed": renames(
            Path(data, "checkpoints", other["checkpoint"])
        ),
    }


if __name__ == "__main__":
    signal.alarm(120)
    given = json.loads(Path(sys.argv[1]).read_text())
    print("probed", json.dumps(look(given)), flush=True)
