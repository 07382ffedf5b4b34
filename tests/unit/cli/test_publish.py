"""``--publish``: which ports of this machine, and the configuration that makes the task's reachable."""

from __future__ import annotations

import pytest

from determined.cli.errors import CliError
from determined.cli.launched import start
from determined.cli.launched.publishing import Published
from determined.expconf.problems import ConfigError
from tests.listening import listening


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
def test_what_is_no_port(given: list[str], words: str) -> None:
    with pytest.raises(CliError, match=words):
        Published(given)


def test_a_port_that_is_taken_is_said_before_anything_is_launched() -> None:
    with listening() as other, listening() as free:
        number, port = other.getsockname()[1], free.getsockname()[1]
        free.close()
        with pytest.raises(CliError, match=f"port {number} of this machine cannot be had"):
            Published([f"{port}:80", f"{number}:8888"])
        # What it had taken is given back.
        with Published([f"{port}:8888"]) as found:
            assert found.ports == [8888]
        with pytest.raises(CliError, match="is there twice"):
            Published([f"{port}:8888", f"{port + 1}:8888"])


def test_detached_there_is_nobody_to_hold_them() -> None:
    with pytest.raises(CliError, match="leave -d out"):
        start.refuse_unattended(["8888"], True)
