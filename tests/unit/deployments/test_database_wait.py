"""Waiting for a Postgres that is not up yet, against a server that speaks the first words of its protocol."""

from __future__ import annotations

import multiprocessing
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from determined_deployments.local import databases
from determined_deployments.local.errors import ClusterError

STARTING = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
REFUSED = b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed\0\0"


def _serve(listening: socket.socket, refusals: int) -> None:
    while True:
        client, _ = listening.accept()
        with client:
            client.recv(1024)
            words = STARTING if refusals > 0 else REFUSED
            refusals -= 1
            client.sendall(b"E" + struct.pack(">i", 4 + len(words)) + words)


@pytest.fixture
def server() -> Iterator[Callable[[int], int]]:
    """Starts one that says so many times that it starts, and then refuses logins; its port.

    A process, because libpq holds the interpreter's lock while it looks.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    found: list[multiprocessing.process.BaseProcess] = []

    def start(refusals: int) -> int:
        process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(listening, refusals), daemon=True
        )
        process.start()
        found.append(process)
        port: int = listening.getsockname()[1]
        return port

    yield start
    for process in found:
        process.kill()
        process.join()
    listening.close()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "LOOK_S", 0.01)


def address(port: int) -> str:
    return f"postgresql://somebody:secret@127.0.0.1:{port}/prefect?sslmode=disable"


def test_a_server_that_starts_is_waited_for(server: Callable[[int], int]) -> None:
    said: list[str] = []
    databases.wait(address(server(3)), 60, said.append)
    (line,) = said
    assert "waiting for postgresql://somebody@127.0.0.1" in line and "it starts or ends" in line
    assert "secret" not in line


def test_a_server_that_answers_is_not_waited_for(server: Callable[[int], int]) -> None:
    """Also one that refuses the password: no wait mends that."""
    said: list[str] = []
    databases.wait(address(server(0)), 0, said.append)
    assert said == []


def test_the_wait_ends_with_the_words_of_the_last_attempt(server: Callable[[int], int]) -> None:
    with pytest.raises(ClusterError, match="the database system is starting up"):
        databases.wait(address(server(10**9)), 0.05, lambda line: None)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        said: list[str] = []
        with pytest.raises(ClusterError, match="refused") as caught:
            databases.wait(address(closed.getsockname()[1]), 0.05, said.append)
    assert "nothing there answers" in said[0]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", ["postgresql://127.0.0.1/db?sslmode=bogus", "postgresql://127.0.0.1/db?nonsense=1"]
)
def test_what_is_no_address_is_not_waited_for(wrong: str) -> None:
    said: list[str] = []
    with pytest.raises(ClusterError, match=r"bogus|nonsense"):
        databases.wait(wrong, 60, said.append)
    assert said == []
