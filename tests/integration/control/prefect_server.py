"""A real Prefect server for tests, on a separate database."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import sqlalchemy as sa

from determined_deployments.local.prefect_server import MODULE, QUIET
from determined_service.base.settings import Settings
from tests.waiting import until

AUTH = "tester:secret"


def with_prefect(settings: Settings, url: str) -> Settings:
    """``settings`` of a service that knows this Prefect."""
    changed = {"prefect_api_url": url, "prefect_auth": AUTH, "agent_timeout_s": 30.0}
    return Settings.model_validate(settings.model_dump() | changed)


@contextlib.contextmanager
def prefect_server(admin_url: str, home: Path) -> Iterator[str]:
    """Runs a server on a new database of the Postgres at ``admin_url``; gives its API's URL."""
    name = f"prefect_{home.name.replace('-', '_')}"
    with psycopg.connect(admin_url, autocommit=True) as conn:
        conn.execute(f'CREATE DATABASE "{name}"')
    database = sa.make_url(admin_url).set(database=name, drivername="postgresql+asyncpg")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if "PREFECT" not in key}
    environment |= {
        **QUIET,
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database.render_as_string(False),
        "PREFECT_SERVER_API_AUTH_STRING": AUTH,
        "PREFECT_SERVER_UI_ENABLED": "false",
        "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",  # MODULE does it
    }
    log = home / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, "127.0.0.1", str(port)],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}/api"
    try:
        _wait_until_up(url, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def tail() -> str:
        return log.read_text()[-3000:]

    def is_up() -> bool:
        assert process.poll() is None, f"Prefect's server has ended:\n{tail()}"
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/health", timeout=2, trust_env=False).status_code == 200
        return False

    until("Prefect's server up", is_up, show=tail)
