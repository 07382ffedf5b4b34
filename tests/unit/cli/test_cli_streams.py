"""`det` with streams that are closed or full, and in a directory that is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """\
name: x
entrypoint: python3 train.py
hyperparameters: {lr: {type: log, base: 10, minval: 0.001, maxval: 0.1}}
searcher: {name: random, metric: loss, max_trials: 2, max_length: {batches: 1}}
"""
DET = f"exec {sys.executable} -c 'from determined.cli import main; main()'"


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "c.yaml").write_text(CONFIG)
    return subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_not_read(tmp_path: Path, closed: str) -> None:
    done = run(f"{DET} preview-search c.yaml {closed}", tmp_path)
    assert done.returncode == 0
    assert ("warning: " in done.stderr) == (closed == ">&-")
    assert ("2 trial(s)" in done.stdout) == (closed == "2>&-")


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    done = run(f"{DET} preview-search c.yaml >/dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == ["error: standard output: No space left on device"]


@pytest.mark.parametrize("words", ["--help", "e --help", "e create --help", "help", ""])
def test_help_on_a_full_disk_is_one_line(tmp_path: Path, words: str) -> None:
    done = run(f"{DET} {words} >/dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: standard output: No space left on device\n"


def test_a_pipes_reader_may_go(tmp_path: Path) -> None:
    done = run(f"({DET} preview-search c.yaml) | true", tmp_path)
    assert "Error" not in done.stderr


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    script = f"mkdir gone && cd gone && rmdir ../gone && {DET} e create {tmp_path}/c.yaml ."
    done = run(script, tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "error: the current directory does not exist any more: change to one that does\n"
    )
