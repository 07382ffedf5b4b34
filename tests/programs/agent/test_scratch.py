"""Temporary directories of agents that were killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from determined_deployments.agent.launchers.fork_server.scratch import RECORD, take_over


def made(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "zygotes").touch()
    return folder


def test_the_next_agent_removes_leftovers(tmp_path: Path) -> None:
    first, second, third = (made(tmp_path, name) for name in ("one", "two", "three"))
    take_over(tmp_path, first)
    take_over(tmp_path, first)
    assert first.exists()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, cwd=first)
    try:
        take_over(tmp_path, second)
        # The first agent's forks still work there.
        assert first.exists()
    finally:
        process.kill()
        process.communicate()
    take_over(tmp_path, third)
    assert [folder.exists() for folder in (first, second, third)] == [False, False, True]


def test_a_record_that_cannot_be_read_is_replaced(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text("{")
    folder = made(tmp_path, "one")
    take_over(tmp_path, folder)
    assert folder.exists()
    take_over(tmp_path, made(tmp_path, "two"))
    assert not folder.exists()
