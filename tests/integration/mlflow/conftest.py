"""A service behind a real socket, and MLflow's server behind it; one for the session, as it takes seconds."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

pytest.importorskip("mlflow")

from determined_service.app import create_app
from determined_service.base.settings import Settings
from tests.integration.conftest import AGENT_TOKEN, Template, _create, serve

WATCHING = """
import sys
if "determined_registry.mlflow.server" in sys.orig_argv:
    watched = ("socket.connect", "socket.getaddrinfo", "socket.sendto", "subprocess.Popen", "os.fork",
               "os.posix_spawn", "os.system", "pty.spawn")
    def watch(event, given):
        if event in watched:
            with open({path!r}, "a") as file:
                file.write(event + " " + repr(given[1:] if event.startswith("socket.c") else given) + "\\n")
    sys.addaudithook(watch)
"""
"""A ``sitecustomize`` that writes down to whom MLflow's server speaks, and what it starts."""


class Cluster:
    """The service's address, and tokens of users."""

    def __init__(self, app: FastAPI, url: str, db_url: str, folder: Path, reader_url: str) -> None:
        self._app = app
        self.url = url
        self.db_url = db_url
        self.folder = folder
        self.reader_url = reader_url
        self.token = self.log_in("determined")

    def log_in(self, name: str) -> str:
        login = {"username": name, "password": "", "isHashed": True}
        answer = httpx.post(f"{self.url}/api/v1/auth/login", json=login)
        answer.raise_for_status()
        return str(answer.json()["token"])

    def api(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=180)

    def browser(self, **more: Any) -> httpx.Client:
        """A client at the pages' own host name, which this machine's resolver may not know."""
        headers = {"Host": f"mlflow.localhost:{httpx.URL(self.url).port}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=180, **more)

    def server_pid(self) -> int:
        """The process of MLflow's server; 0: there is none."""
        return self._app.state.mlflow.pid or 0

    @property
    def tracking_uri(self) -> str:
        return f"{self.url}/mlflow"


@pytest.fixture(scope="session")
def cluster(
    postgres_server: str, template: Template, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("mlflow")
    db_url = _create(postgres_server, f"mlflow_{uuid.uuid4().hex[:8]}", template.name)
    # MLflow's server reads as a separate role, so every test here also checks that the role's rights are
    # enough.
    role = f"mlflow_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'of-mlflow'")
    reader = sa.make_url(db_url).set(username=role, password="of-mlflow")
    settings = Settings.model_validate(
        {
            "db_url": db_url,
            "mlflow_db_url": reader.render_as_string(False),
            "agent_token": AGENT_TOKEN,
            "data_dir": folder,
            "default_checkpoint_storage": {
                "type": "shared_fs",
                "host_path": str(folder / "checkpoints"),
            },
        }
    )
    (folder / "watching").mkdir()
    (folder / "watching" / "sitecustomize.py").write_text(
        WATCHING.format(path=str(folder / "watched.txt"))
    )
    app = create_app(settings)
    with pytest.MonkeyPatch.context() as patch, serve(app) as url:
        patch.setenv("PYTHONPATH", str(folder / "watching"))
        yield Cluster(app, url, db_url, folder, reader.render_as_string(False))


@pytest.fixture
def tracking(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """MLflow's client in this process speaks with the service."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", cluster.token)
    # A refusal is an answer: MLflow's client must not retry here.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(cluster.tracking_uri)
    yield cluster
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(before)
