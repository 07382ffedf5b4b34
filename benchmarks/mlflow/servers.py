"""Our service with MLflow behind it, and MLflow's own server, on two databases of one Postgres."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import psycopg
import sqlalchemy as sa

from benchmarks.database import postgres
from determined_registry.database import migrate
from tests.object_servers import free_port

START_S = 180.0


@dataclass(frozen=True)
class TrackingServer:
    """``uri`` and ``token``: what clients set. ``process``: the server, whose children count as its own."""

    uri: str
    token: str
    process: psutil.Process

    def cpu_seconds(self) -> float:
        """CPU seconds so far of the server and its children."""
        tree = [self.process, *self.process.children(recursive=True)]
        times = [one.cpu_times() for one in tree]
        return sum(one.user + one.system for one in times)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process whose MLflow speaks with the server. A refusal is an answer, which
        is not to be asked for again."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW")}
        return {
            **kept,
            "MLFLOW_TRACKING_URI": self.uri,
            "MLFLOW_TRACKING_TOKEN": self.token,
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
            "GIT_PYTHON_REFRESH": "quiet",
        }


def databases(admin: str) -> dict[str, str]:
    """Makes the databases ``ours``, which is migrated, and ``theirs``; returns their URLs."""
    urls = {}
    with psycopg.connect(admin, autocommit=True) as conn:
        for name in ("ours", "theirs"):
            conn.execute(f"CREATE DATABASE {name}")
            urls[name] = sa.make_url(admin).set(database=name).render_as_string(False)
    migrate.upgrade(urls["ours"])
    return urls


@contextlib.contextmanager
def both(folder: Path) -> Iterator[tuple[TrackingServer, TrackingServer]]:
    """Ours and MLflow's, each answering."""
    with postgres() as admin:
        urls = databases(admin)
        with (
            ours(urls["ours"], folder / "ours") as one,
            theirs(urls["theirs"], folder / "theirs") as other,
        ):
            yield one, other


@contextlib.contextmanager
def ours(db_url: str, folder: Path) -> Iterator[TrackingServer]:
    """The service on a migrated database, and the token of a user."""
    folder.mkdir(parents=True)
    port = free_port()
    settings = {
        "db_url": db_url,
        "agent_token": "agent-token-of-the-benchmark",
        "port": port,
        "data_dir": str(folder),
        "default_checkpoint_storage": {"type": "shared_fs", "host_path": str(folder / "storage")},
    }
    (folder / "service.json").write_text(json.dumps(settings))
    env = {**os.environ, "DET_SERVICE_CONFIG": str(folder / "service.json")}
    url = f"http://127.0.0.1:{port}"
    with _running([sys.executable, "-m", "determined_service"], env, folder, f"{url}/health") as up:
        login = {"username": "determined", "password": "", "isHashed": True}
        answer = httpx.post(f"{url}/api/v1/auth/login", json=login)
        answer.raise_for_status()
        token = str(answer.json()["token"])
        # The first request starts MLflow's server.
        headers = {"Authorization": f"Bearer {token}"}
        httpx.get(f"{url}/mlflow/version", headers=headers, timeout=START_S).raise_for_status()
        yield TrackingServer(f"{url}/mlflow", token, up)


@contextlib.contextmanager
def theirs(db_url: str, folder: Path) -> Iterator[TrackingServer]:
    """`mlflow server` with one worker on an empty database, as it is installed."""
    folder.mkdir(parents=True)
    port = free_port()
    store = sa.make_url(db_url).set(drivername="postgresql+psycopg").render_as_string(False)
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--port", str(port), "--backend-store-uri", store]
    command += ["--artifacts-destination", str(folder / "storage")]
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    env["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    url = f"http://127.0.0.1:{port}"
    with _running(command, env, folder, f"{url}/health") as up:
        yield TrackingServer(url, "", up)


@contextlib.contextmanager
def _running(
    command: list[str], env: dict[str, str], folder: Path, health: str
) -> Iterator[psutil.Process]:
    log = folder / "server.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(health).is_success:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[1:3]} did not start:\n{log.read_text()}")
            time.sleep(0.2)
        yield psutil.Process(process.pid)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.terminate()
        process.terminate()
        process.wait(30)
