"""Lets a training process say where it is: the fallback of `det trial dump` where py-spy cannot look.

At a signal that nobody uses, the interpreter writes the stacks of all threads into a file of the task's run
directory, also while the main thread hangs in native code.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import IO

SIGNAL = 41
"""In the middle of the real-time signals of Linux, whose first ones libraries use."""
_kept: list[IO[str]] = []


def path_of(run_dir: Path, pid: int) -> Path:
    """The file to which the process writes."""
    return run_dir / f"stacks-{pid}.txt"


def is_caught(pid: int) -> bool:
    """Whether the process heeds the signal; else it would end by it."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False


def listen() -> None:
    """From now on this process answers, if it belongs to a task and nobody else wants the signal."""
    run_dir = os.environ.get("DET_RUN_DIR")
    if sys.platform != "linux" or not run_dir or _kept or is_caught(os.getpid()):
        return
    if signal.getsignal(SIGNAL) not in (signal.SIG_DFL, None):
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        file = path_of(Path(run_dir), os.getpid()).open("w")
        faulthandler.register(SIGNAL, file=file, all_threads=True)
        _kept.append(file)
