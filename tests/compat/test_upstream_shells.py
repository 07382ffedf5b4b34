"""The published `det` with shells."""

from __future__ import annotations

import pytest

from tests.compat.upstream_client import UpstreamClient

# The first test may have to install the client.
pytestmark = pytest.mark.timeout(900)


def test_shells(upstream: UpstreamClient) -> None:
    given = ["--config", "resources.slots=0", "--config", "description=s"]
    shell_id = upstream.det("shell", "start", "-d", *given).stdout.strip()
    # Waits until it is ready, and asks for the key.
    command = upstream.det("shell", "show-ssh-command", shell_id[:8]).stdout
    assert shell_id in command and "determined.cli.tunnel" in command
    assert "to 7" in upstream.det("shell", "set", "priority", shell_id, "7").stdout
    assert "determined.exec.shell" in upstream.det("shell", "config", shell_id).stdout
    upstream.det("shell", "kill", shell_id[:8])
    upstream.det("shell", "logs", "-f", shell_id)
    (found,) = [one for one in upstream.json("shell", "list") if one["id"] == shell_id]
    assert (found["state"], found["exitStatus"]) == ("TERMINATED", "killed by the user")
