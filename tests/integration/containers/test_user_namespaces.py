"""An engine whose containers' users are other users of the machine."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import container_engine
from tests.waiting import TIMEOUT_S


def somebody() -> str:
    """A user of the machine with numbers for its containers; ``default``: the engine makes one."""
    with suppress(OSError):
        for line in Path("/etc/subuid").read_text().splitlines():
            with suppress(KeyError):
                return pwd.getpwnam(line.partition(":")[0]).pw_name
    return "default"


@pytest.fixture
def engine() -> Iterator[None]:
    options = [f"--userns-remap={somebody()}", "--storage-driver=vfs"]
    with container_engine.own(*options) as made:
        if isinstance(made, str):
            pytest.skip(made)
        yield


def test_an_agent_says_that_it_cannot_use_it(engine: None, tmp_path: Path) -> None:
    """Else each trial would end because it cannot read its own directories."""
    settings = tmp_path / "agent.json"
    given = {"agent_id": "a", "slots": 1, "agent_token": "s", "launcher": "docker"}
    places = {"work_dir": str(tmp_path / "work"), "master_url": "http://127.0.0.1:1"}
    settings.write_text(json.dumps({**given, **places}))
    command = [sys.executable, "-m", "determined_deployments.agent"]
    environment = {**os.environ, "DET_AGENT_CONFIG": str(settings)}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert ended.returncode == 1, ended.stderr
    (line,) = [one for one in ended.stderr.splitlines() if "ERROR" in one]
    assert "userns-remap" in line and "start dockerd without it" in line
