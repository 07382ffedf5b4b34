"""The published `det` with shells."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from tests import ssh_server
from tests.compat.upstream_client import UpstreamClient
from tests.waiting import TIMEOUT_S

# The first test may have to install the client.
pytestmark = pytest.mark.timeout(900)


def test_shells(upstream: UpstreamClient) -> None:
    ssh_server.require()
    given = ["--config", "resources.slots=0", "--config", "description=s"]
    shell_id = upstream.det("shell", "start", "-d", *given).stdout.strip()
    # Waits until it is ready, and asks for the key.
    command = upstream.det("shell", "show-ssh-command", shell_id[:8]).stdout
    assert shell_id in command and "determined.cli.tunnel" in command
    # Its tunnel sends a login if configured; without a login it gets a message.
    refused = upstream.det("shell", "open", shell_id, "--", "true")
    assert "the tunnel has sent no login: use det" in refused.stderr
    # After the words that it waits.
    command = command[command.index("ssh -o") :].strip()
    words = shlex.split(command.replace("cli.tunnel ", "cli.tunnel --auth "))
    program = [*words, "-o", "BatchMode=yes", "echo in-$((40+2))"]
    entered = subprocess.run(
        program, env=upstream.env, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert entered.stdout == "in-42\n", entered.stderr
    assert "to 7" in upstream.det("shell", "set", "priority", shell_id, "7").stdout
    assert "determined.exec.shell" in upstream.det("shell", "config", shell_id).stdout
    upstream.det("shell", "kill", shell_id[:8])
    upstream.det("shell", "logs", "-f", shell_id)
    (found,) = [one for one in upstream.json("shell", "list") if one["id"] == shell_id]
    assert (found["state"], found["exitStatus"]) == ("TERMINATED", "killed by the user")
