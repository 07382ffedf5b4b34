"""Temporary directories of agents that were killed: the next agent removes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import psutil

RECORD = "scratch.json"


def take_over(work_dir: Path, current: Path) -> None:
    """Notes that this agent's temporary directory is ``current``; removes those of its predecessors.

    A process that a predecessor forked may still have its working directory there: then the directory stays,
    and the next agent removes it.
    """
    record = work_dir / RECORD
    try:
        known = [Path(path) for path in json.loads(record.read_text())]
    except (OSError, ValueError, TypeError):
        known = []
    used = _working_directories() if known else set()
    for path in known:
        if path != current and path not in used:
            shutil.rmtree(path, ignore_errors=True)
    left = [str(path) for path in known if path != current and path.exists()]
    aside = record.with_suffix(".part")
    aside.write_text(json.dumps([*left, str(current)]))
    aside.rename(record)


def _working_directories() -> set[Path]:
    found = set()
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"]:
            found.add(Path(process.info["cwd"]))
    return found
