"""Postgres as a pod runs it: made on first use, started again, with other passwords."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from determined_deployments.local import databases
from tests.memory_folder import memory_folder
from tests.object_servers import free_port
from tests.waiting import TIMEOUT_S, until

pytestmark = pytest.mark.skipif(
    os.geteuid() == 0 and not Path("/usr/bin/setpriv").exists(),
    reason="Postgres refuses root, and there is no setpriv",
)

NOBODY = 65534


@contextmanager
def server(folder: Path, passwords: dict[str, str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The process, under an account that is not root, as a pod's security context says."""
    secrets = folder / "secrets"
    secrets.mkdir(exist_ok=True)
    for name, password in passwords.items():
        (secrets / f"db-{name}-password").write_text(password + "\n")
    data = folder / "data"
    data.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "determined_deployments.postgres_process"]
    if os.geteuid() == 0:
        os.chown(data, NOBODY, NOBODY)
        as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        command = [*as_nobody, *command]
    process = subprocess.Popen([*command, str(data), str(secrets), "127.0.0.1", str(port)])
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(TIMEOUT_S)


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's tmp_path: another account must get in.
    with memory_folder("det-test-pg-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


def test_it_is_made_once_and_takes_new_passwords(folder: Path) -> None:
    port = free_port()

    def answers(process: subprocess.Popen[bytes], url: str) -> bool:
        assert process.poll() is None, "it has ended; its output says why"
        return databases.answers(url)

    def url(role: str, password: str, database: str) -> str:
        return f"postgresql://{role}:{password}@127.0.0.1:{port}/{database}"

    first = {"determined": "one", "prefect": "two", "mlflow": "three"}
    with server(folder, first, port) as process:
        owner = url("determined_owner", "one", "determined")
        until("the server", lambda: answers(process, owner))
        # The process has become Postgres, so the pod's signals reach it.
        assert Path(f"/proc/{process.pid}/exe").resolve().name == "postgres"
        with psycopg.connect(owner) as connection:
            connection.execute("CREATE TABLE kept (x int)")
        assert databases.answers(url("prefect_owner", "two", "prefect"))
        assert databases.answers(url("mlflow_reader", "three", "determined"))
        # Neither the other's database, nor the superuser from the network.
        assert not databases.answers(url("prefect_owner", "two", "determined"))
        assert not databases.answers(url("determined", "one", "postgres"))
        assert not databases.answers(url("determined_owner", "wrong", "determined"))

    with server(folder, {**first, "determined": "changed"}, port) as process:
        owner = url("determined_owner", "changed", "determined")
        until("the server again", lambda: answers(process, owner))
        assert not databases.answers(url("determined_owner", "one", "determined"))
        with psycopg.connect(owner) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
