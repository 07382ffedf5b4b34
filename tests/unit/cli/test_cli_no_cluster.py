"""The messages of `det` when no cluster answers: the state, the source of the address, and the advice."""

from __future__ import annotations

import errno
import importlib.util
import socket
import ssl
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from determined.cli.root import app
from determined.common import installation
from determined.common.api import authentication
from determined.common.api.token_store import TokenStore
from tests.certificates import self_signed
from tests.listening import answering

PAGE = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 9\r\n\r\n<h1>no<h1>"
JSON = (
    b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 22\r\n\r\n"
    b'{"detail":"Not Found"}'
)
WORDS = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
SSH = b"SSH-2.0-OpenSSH_9.6\r\n"


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials, no retries' waits, no long timeouts."""
    for name in ("DET_MASTER", "DET_USER", "DET_PASS"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(authentication, "_RETRIES", 0)


def det(*args: str) -> Result:
    """`det` with the real network."""
    return CliRunner().invoke(app, list(args))


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def fails(result: Result, *said: str) -> None:
    """One line with all of ``said`` and the way out, and nothing on the login."""
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert len(result.stderr.splitlines()) == 1
    for words in (*said, "det deploy local cluster-up", "-m or DET_MASTER"):
        assert words in result.stderr
    assert "logged in" not in result.stderr


@pytest.mark.parametrize("command", ["e list", "u whoami", "t logs 1", "e kill 3", "master info"])
def test_a_refused_connection(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = closed_port()
    monkeypatch.setenv("DET_MASTER", f"127.0.0.1:{port}")
    fails(
        det(*command.split()),
        f"no answer from the service at http://127.0.0.1:{port}: the connection is refused",
        "the address comes from the variable DET_MASTER)",
    )


def test_the_source_of_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    fails(det("e", "list"), "http://localhost:8080", "the default address: ", "are not set")
    monkeypatch.setenv("DET_MASTER_ADDR", "one")
    fails(det("e", "list"), "http://one:8080", "from the variable DET_MASTER_ADDR")
    fails(det("-m", "https://two", "e", "list"), "https://two:443", "the address comes from -m")
    monkeypatch.delenv("DET_MASTER_ADDR")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/cluster.json").write_text(
        '{"cluster_id": "c", "cluster_name": "n", "master_url": "http://127.0.0.1:9", '
        '"prefect_url": "http://p", "passwords": {"determined": "x"}, "prefect_auth": null}'
    )
    fails(det("e", "list"), f"the address of the local cluster in {tmp_path / 'data'}")


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    fails(
        det("-m", "trainning.example", "e", "list"),
        "the host name 'trainning.example' does not resolve (Name or service not known)",
    )


def test_a_host_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    fails(det("-m", "far", "e", "list"), "the host cannot be reached (No route to host)")


def test_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*args: object, **kwargs: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", late)
    fails(
        det("-m", "far", "e", "list"), "timeout: no connection within 5 s; a firewall may drop it"
    )


def test_a_peer_without_an_answer() -> None:
    from determined.common.api import Session, errors

    said = r"it does not answer within 0\.1"
    with (
        answering(None) as port,
        Session(f"http://127.0.0.1:{port}", timeout=0.1) as session,
        pytest.raises(errors.MasterNotFoundException, match=said),
    ):
        session.request("GET", "/", max_retries=0)


def test_tls_where_there_is_none() -> None:
    with answering(PAGE) as port:
        fails(det("-m", f"https://127.0.0.1:{port}", "e", "list"), "speaks no TLS; try http://")


def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path / "own.pem"))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client, pytest.raises(ssl.SSLError):
                context.wrap_socket(client, server_side=True)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        result = det("-m", f"https://127.0.0.1:{server.getsockname()[1]}", "e", "list")
        thread.join()
    fails(result, "TLS: its certificate is not trusted", "DET_MASTER_CERT_FILE")


@pytest.mark.parametrize("answer", [PAGE, JSON, WORDS])
@pytest.mark.parametrize("login", ["none", "variables", "typed"])
def test_another_program_answers(
    answer: bytes, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if login == "variables":
        monkeypatch.setenv("DET_USER", "ann")
        monkeypatch.setenv("DET_PASS", "hush")
    words = ["u", "login", "ann"] if login == "typed" else ["e", "list"]
    with answering(answer) as port:
        fails(
            det("-m", f"127.0.0.1:{port}", *words),
            f"another program than the service answers at http://127.0.0.1:{port}",
            "the address comes from -m",
        )


def test_a_kept_token_outlives_another_program_at_the_address() -> None:
    with answering(PAGE) as port:
        url = f"http://127.0.0.1:{port}"
        TokenStore().set_token(url, "ann", "token")
        fails(det("-m", url, "e", "list"), "another program than the service answers")
        assert TokenStore().token(url) == "token"


def test_a_server_without_http() -> None:
    with answering(SSH) as port:
        fails(det("-m", f"127.0.0.1:{port}", "e", "list"), "does not speak HTTP")


@pytest.mark.parametrize("given", ["http://", "ftp://host", "host:port"])
def test_no_address_at_all(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_MASTER", given)
    result = det("e", "list")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: DET_MASTER: {given!r} is not an address")
    assert len(result.stderr.splitlines()) == 1


def test_a_wheel_without_its_extra_starts_no_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Said before anything of the platform is imported, which would end in a traceback."""
    assert installation.no_platform() is None
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *of: None if name == "psycopg" else find(name, *of),
    )
    for words in (["cluster-up"], ["cluster-down"], ["uninstall", "--yes"], ["status"], ["logs"]):
        result = det("deploy", "local", *words)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"Error: {installation.no_platform()}\n"
    result = det("agent", "start", "--type", "docker")
    assert (result.exit_code, result.stderr) == (
        1,
        f"error: {installation.no_platform('docker')}\n",
    )
    assert "[cluster,docker]" in result.stderr
    (tmp_path / "train.py").write_text("")
    config = tmp_path / "c.yaml"
    config.write_text("entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n")
    result = det("flow", "run", str(config), str(tmp_path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith(
        "; give the address of a cluster with -m or DET_MASTER. None can be started on this machine: "
        f"{installation.no_platform()}\n"
    )
