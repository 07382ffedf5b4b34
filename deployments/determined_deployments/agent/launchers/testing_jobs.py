"""What the contract's jobs do. Apart from :mod:`testing`, so that a job does not import pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from determined_tasks import bell
from determined_tasks.supervision import LegRecord, ProcessName, lock

LONGEST_SECONDS = 900.0
"""A job whose test failed ends by itself after this."""


def say(argument: dict[str, Any]) -> int:
    """Writes ``text`` to ``path`` and exits with ``code``."""
    Path(argument["path"]).write_text(argument["text"])
    return int(argument["code"])


def stay(argument: dict[str, Any]) -> int:
    """Runs until ``path`` has a file ``go`` or a signal comes, and a child of it until it is killed.

    Writes the child's id to ``child``, with the number of the namespace of process ids in which that holds,
    and a signal's number to ``signal``. A leg (``allocation``: its
    directory) keeps the supervisor's record and removes its directory when it ends by itself. Each time that
    it is rung it adds a byte to ``rung``.
    """
    folder = Path(argument["path"])
    if argument.get("allocation") is None:
        return _stay(folder)
    allocation = Path(argument["allocation"])
    with lock(allocation) as ours:
        if not ours:
            return 0
        me = ProcessName.of(os.getpid())
        assert me is not None
        LegRecord(allocation.name, None, me).write(allocation)
        bell.listen(allocation, lambda: _add(folder / "rung"))
        code = _stay(folder)
        for path in allocation.iterdir():
            path.unlink()
        allocation.rmdir()
    return code


def _stay(folder: Path) -> int:
    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, handle)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        _write(folder / "child", f"{child.pid} {pid_namespace('self')}")
        deadline = time.monotonic() + LONGEST_SECONDS
        while not seen and not (folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    if seen:
        _write(folder / "signal", str(seen[0]))
    return 0


def pid_namespace(process: str) -> int:
    """The number of a process's namespace of process ids, the same wherever it is asked for."""
    return Path(f"/proc/{process}/ns/pid").stat().st_ino


def _add(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"r")


def _write(path: Path, text: str) -> None:
    aside = path.with_suffix(".part")
    aside.write_text(text)
    aside.rename(path)
