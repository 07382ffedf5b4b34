"""``--publish``: which ports of this machine, and the configuration that makes the task's reachable."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from determined.cli.errors import CliError
from determined.cli.launched import start
from determined.cli.launched.publishing import Published
from determined.cli.state import State
from determined.expconf.problems import ConfigError
from tests.listening import listening

NOBODY = State(master="http://127.0.0.1:1")


class _Agents:
    """A session of a cluster with one agent."""

    def __init__(self, host: str) -> None:
        self.host = host

    def get(self, path: str, **_: Any) -> dict[str, Any]:
        assert path == "/api/v1/agents"
        return {"agents": [{"id": "a", "addresses": [self.host]}], "pagination": {"total": 1}}


def test_ports_in_the_configuration() -> None:
    given = ["environment.proxy_ports=[{proxy_port: 8265, default_service_id: true}]"]
    found = start.configuration(None, given, None, ["true"], ports=[8265, 5678])
    assert found["environment"]["proxy_ports"] == [
        {"proxy_port": 8265, "default_service_id": True},
        {"proxy_port": 5678, "proxy_tcp": True},
    ]
    # Without files and options too, and mistakes of others' are still said.
    assert "environment" in start.configuration(None, None, None, ["true"], ports=[80])
    with pytest.raises(ConfigError, match="proxy_ports"):
        start.configuration(None, ["environment.proxy_ports=7"], None, ["true"], ports=[80])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["x"], "write PORT, or LOCAL_PORT:PORT"),
        (["1:2:3"], "write PORT"),
        (["70000"], "write PORT"),
        (["0:80"], "write PORT"),
    ],
)
def test_an_invalid_port(given: list[str], words: str) -> None:
    with pytest.raises(CliError, match=words):
        Published(given, NOBODY)


def test_a_port_that_is_taken_is_said_before_anything_is_launched() -> None:
    with listening() as other, listening() as free:
        number, port = other.getsockname()[1], free.getsockname()[1]
        free.close()
        with pytest.raises(CliError, match=f"port {number} of this machine cannot be had"):
            Published([f"{port}:80", f"{number}:8888"], NOBODY)
        # The ports taken before the failure are free again.
        with Published([f"{port}:8888"], NOBODY) as found:
            assert found.ports == [8888]
        with pytest.raises(CliError, match="is there twice"):
            Published([f"{port}:8888", f"{port + 1}:8888"], NOBODY)


@pytest.mark.parametrize("here", [True, False])
def test_a_port_that_a_task_on_this_machine_needs_is_left_to_it(
    here: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = State(master="http://127.0.0.1:1")
    shared.__dict__["session"] = _Agents(socket.gethostname() if here else "elsewhere")
    with listening() as free:
        port = free.getsockname()[1]
        free.close()
        with Published([f"{port}"], shared) as found:
            assert found.ports == [port]
            found.start("the-task")
            with contextlib.ExitStack() as stack:
                taken = contextlib.nullcontext() if here else pytest.raises(OSError)
                stack.enter_context(taken)
                socket.create_server(("127.0.0.1", port)).close()
    said = capsys.readouterr().err
    assert f"is port {port} of the-task" in said
    assert (f"{port} itself is left to the task: an agent runs on this machine" in said) == here
    assert (f"localhost:{port} is" in said) != here


def test_detached_programs_are_not_held() -> None:
    with pytest.raises(CliError, match="leave -d out"):
        start.refuse_unattended(["8888"], True)
