"""`det deploy prefect`, `service` and `migrate`: each alone in the foreground, as systemd starts them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest
import yaml

from tests.integration.conftest import new_database
from tests.local_cluster import DET
from tests.object_servers import free_port
from tests.waiting import TIMEOUT_S, until


@contextlib.contextmanager
def deployed(
    word: str, config: Path, home: Path, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DET_", "PREFECT_"))
    }
    with (home / f"{word}.log").open("wb") as log:
        process = subprocess.Popen(
            [*DET, "deploy", word, "--config", str(config)],
            env={**env, "HOME": str(home), **variables},
            cwd=home,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def answer(url: str, **options: object) -> httpx.Response | None:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, trust_env=False, **options)  # type: ignore[arg-type]
    return None


def test_each_runs_alone_until_it_is_stopped(postgres_server: str, tmp_path: Path) -> None:
    ports = {"prefect": free_port(), "service": free_port()}
    url = {word: f"http://127.0.0.1:{port}" for word, port in ports.items()}
    config = tmp_path / "service.yaml"
    settings = {
        "port": ports["service"],
        "db_url": new_database(postgres_server),
        "prefect_db_url": new_database(postgres_server),
        "prefect_api_url": f"{url['prefect']}/api",
        "prefect_auth": "determined:secret",
        "agent_token": "token",
        "data_dir": str(tmp_path / "data"),
        "trusted_proxies": ["127.0.0.1"],
    }
    config.write_text(yaml.safe_dump(settings))
    (tmp_path / "data").mkdir()

    def is_there(word: str, path: str, status: int, **options: object) -> bool:
        found = answer(url[word] + path, **options)
        return found is not None and found.status_code == status

    with (
        deployed("prefect", config, tmp_path) as prefect,
        deployed("service", config, tmp_path) as service,
    ):
        auth = ("determined", "secret")
        until("Prefect", lambda: is_there("prefect", "/api/version", 200, auth=auth))
        assert is_there("prefect", "/api/version", 401)
        until("the service", lambda: is_there("service", "/ready", 200))
        # The processes that were started are the components themselves.
        assert "determined_deployments.prefect_process" in psutil.Process(prefect.pid).cmdline()
        assert "determined_service" in psutil.Process(service.pid).cmdline()
        environment = psutil.Process(service.pid).environ()
        assert environment["DO_NOT_TRACK"] == "true"
        for process in (service, prefect):
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT_S)
    assert (tmp_path / "data/prefect").stat().st_mode & 0o077 == 0


def test_tables_are_migrated_beforehand_and_prefect_listens_where_it_is_told(
    postgres_server: str, tmp_path: Path
) -> None:
    port = free_port()
    config = tmp_path / "service.yaml"
    databases = {name: new_database(postgres_server) for name in ("db_url", "prefect_db_url")}
    settings = {
        **databases,
        # As in Kubernetes: the name by which others reach it is not an address where it can listen.
        "prefect_api_url": f"http://prefect.invalid:{port}/api",
        "prefect_auth": "determined:secret",
        "agent_token": "token",
        "data_dir": str(tmp_path / "data"),
    }
    config.write_text(yaml.safe_dump(settings))
    command = [*DET, "deploy", "migrate", "--config", str(config)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        assert "the database of the service is at revision" in done.stdout
    for url, table in zip(databases.values(), ("experiments", "flow_run"), strict=True):
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT to_regclass(%s)", [table]).fetchone() != (None,)

    variables = {"PREFECT_SERVER_API_HOST": "127.0.0.1", "PREFECT_SERVER_API_PORT": str(port)}
    with deployed("prefect", config, tmp_path, **variables):
        until("Prefect", lambda: answer(f"http://127.0.0.1:{port}/api/health") is not None)


def test_a_migration_that_fails_changes_nothing_of_prefects(
    postgres_server: str, tmp_path: Path
) -> None:
    config = tmp_path / "service.yaml"
    prefect = new_database(postgres_server)
    settings = {
        "db_url": "postgresql://nobody:x@127.0.0.1:1/none",
        "db_wait_s": 0,
        "prefect_db_url": prefect,
        "prefect_api_url": "http://127.0.0.1:4200/api",
        "prefect_auth": "determined:secret",
        "agent_token": "token",
        "data_dir": str(tmp_path / "data"),
    }
    config.write_text(yaml.safe_dump(settings))
    command = [*DET, "deploy", "migrate", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert "refused" in done.stderr and "Traceback" not in done.stderr
    with psycopg.connect(prefect) as connection:
        assert connection.execute("SELECT to_regclass('flow_run')").fetchone() == (None,)


@pytest.mark.parametrize(
    ("word", "text", "said"),
    [
        (
            "service",
            "db_url: x\nport: none\n",
            "service.yaml: port: Input should be a valid integer",
        ),
        (
            "prefect",
            "prefect_auth: a:b\n",
            "service.yaml: prefect_api_url is missing, or not a text",
        ),
        (
            "service",
            "db_url: postgresql://nobody:x@127.0.0.1:1/none\nprefect_api_url: http://127.0.0.1:1/api\n"
            "agent_token: token\ndata_dir: /nowhere\ndb_wait_s: 0\n",
            "names the database; a server that needs longer to come up than 0 s is waited for longer with",
        ),
        ("prefect", "[]", "service.yaml: expected settings, name: value"),
        ("prefect", None, "service.yaml cannot be read"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, word: str, text: str | None, said: str) -> None:
    config = tmp_path / "service.yaml"
    if text is not None:
        config.write_text(text)
    command = [*DET, "deploy", word, "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert said in done.stderr and "Traceback" not in done.stderr


class Forwarder(socketserver.ThreadingTCPServer):
    """The server of the tests at a TCP port, from the time on when this is made."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int, path: str) -> None:
        self.path = path
        super().__init__(("127.0.0.1", port), socketserver.BaseRequestHandler)

    def finish_request(self, request: socket.socket, client_address: object) -> None:
        with socket.socket(socket.AF_UNIX) as there:
            there.connect(self.path)
            ends = {request: there, there: request}
            while True:
                readable, _, _ = select.select(list(ends), [], [])
                for end in readable:
                    if not (found := end.recv(65536)):
                        return
                    ends[end].sendall(found)


def test_each_waits_for_a_postgres_that_comes_up_later(
    postgres_server: str, tmp_path: Path
) -> None:
    """As in Kubernetes, where all pods of a release start at once."""
    port = free_port()
    wanted = new_database(postgres_server)
    given = psycopg.conninfo.conninfo_to_dict(wanted)
    database = f"postgresql://{given['user']}@127.0.0.1:{port}/{given['dbname']}?sslmode=disable"
    config = tmp_path / "service.yaml"
    settings = {
        "port": free_port(),
        "db_url": database,
        "prefect_db_url": database,
        "prefect_api_url": f"http://127.0.0.1:{free_port()}/api",
        "prefect_auth": "determined:secret",
        "agent_token": "token",
        "data_dir": str(tmp_path),
    }
    config.write_text(yaml.safe_dump(settings))

    def said(word: str) -> str:
        return (tmp_path / f"{word}.log").read_text()

    words = ("prefect", "service", "migrate")
    with contextlib.ExitStack() as stack:
        found = {word: stack.enter_context(deployed(word, config, tmp_path)) for word in words}
        for word in words:
            until(f"{word} to wait", lambda word=word: "waiting for postgresql://" in said(word))  # type: ignore[misc]
        # A signal ends the wait.
        found["prefect"].send_signal(signal.SIGTERM)
        found["prefect"].wait(TIMEOUT_S)
        assert found["service"].poll() is None and found["migrate"].poll() is None
        with Forwarder(port, f"{given['host']}/.s.PGSQL.{given.get('port', 5432)}") as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            assert found["migrate"].wait(TIMEOUT_S) == 0, said("migrate")
            url = f"http://127.0.0.1:{settings['port']}/health"
            until("the service", lambda: answer(url) is not None)
            server.shutdown()

    config.write_text(yaml.safe_dump({**settings, "db_wait_s": 0}))
    with deployed("service", config, tmp_path) as process:
        assert process.wait(TIMEOUT_S) == 1
    assert "refused" in said("service") and "db_wait_s" in said("service")
