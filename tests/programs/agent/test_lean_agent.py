"""The imports of a starting agent: a restarted machine waits for them."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import TIMEOUT_S


def test_a_starting_agent_imports_neither_the_supervisors_modules_nor_yaml() -> None:
    code = (
        "import sys, determined_deployments.agent.agent;"
        "import determined_deployments.agent.launchers.fork_server.launcher;"
        "names = ('determined_tasks.leg', 'yaml', 'prefect', 'rich', 'torch');"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout.strip() == "[]"
