"""``python -m determined_deployments.postgres_process FOLDER SECRETS ADDRESS PORT``: Postgres in a pod.

For clusters on Kubernetes without a database server (docs/operate/kubernetes.md). It makes the database
folder on first use, makes both databases with their owners, and becomes the server. The folder ``SECRETS``
has the passwords as files: ``db-determined-password``, ``db-prefect-password``, ``db-mlflow-password``. A
password that was changed there holds from the next start on.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from determined_deployments.local import databases, postgres
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.state import DATABASES, ClusterState

START_S = 300.0
LOOK_S = 0.1

LOGINS = """\
local  all         determined                       trust
host   determined  determined_owner,mlflow_reader   all  scram-sha-256
host   prefect     prefect_owner                    all  scram-sha-256
"""
"""``pg_hba.conf``: from the network come the owners of the two databases and MLflow's reader. The superuser
comes through a socket that only this process' account enters, while the pod starts."""


def main(folder: str, passwords: str, address: str, port: str) -> None:
    """Prepares the databases, then becomes the server, which SIGINT ends fast and cleanly."""
    Path(folder).mkdir(mode=0o700, exist_ok=True)
    data = Path(folder) / "db"
    if not data.exists():
        # Nobody needs the superuser's password: it does not come through the network.
        postgres.initialize(data, secrets.token_urlsafe(24), None)
    # Kubernetes may have given the volume to the pod's group, and Postgres wants its folder for itself.
    data.chmod(0o700)
    (data / "pg_hba.conf").write_text(LOGINS)
    # One pod at a time has the volume, so the file is left by a server that was killed.
    (data / "postmaster.pid").unlink(missing_ok=True)
    state = ClusterState(
        db_passwords={name: _password(passwords, name) for name in DATABASES},
        mlflow_db_password=_password(passwords, "mlflow"),
    )
    with _on_socket(data) as url:
        databases.ensure_owners(state, url)
    # The socket, too: nobody else enters the pod, and an administrator does (`kubectl exec`).
    words = _server(data, {"listen_addresses": address, "port": port})
    os.execv(words[0], words)


def _password(folder: str, name: str) -> str:
    return (Path(folder) / f"db-{name}-password").read_text().rstrip("\r\n")


def _server(data: Path, settings: dict[str, str]) -> list[str]:
    words = [str(postgres.binary("postgres")), "-D", str(data)]
    for key, value in {**postgres.SETTINGS, **settings}.items():
        words += ["-c", f"{key}={value}"]
    return words


@contextlib.contextmanager
def _on_socket(data: Path) -> Iterator[str]:
    """The server without a network, and its address for the superuser."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"listen_addresses": "", "unix_socket_directories": folder}
        process = subprocess.Popen(_server(data, settings))
        url = f"postgresql://{databases.ROLE}@/postgres?host={folder}"
        try:
            until = time.monotonic() + START_S
            while not databases.answers(url):
                if process.poll() is not None or time.monotonic() > until:
                    raise ClusterError(
                        f"Postgres does not start in {data}; the lines above say why"
                    )
                time.sleep(LOOK_S)
            yield url
        finally:
            # Fast shutdown: what was written is on the disk.
            if process.poll() is None:
                process.send_signal(postgres.STOP_SIGNALS[0][0])
            process.wait()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit("expected FOLDER SECRETS ADDRESS PORT")
    try:
        main(*sys.argv[1:])
    except ClusterError as error:
        raise SystemExit(str(error)) from None
