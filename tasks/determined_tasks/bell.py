"""The agent rings a supervisor: a pipe with a name in the allocation's directory.

Not a signal: a supervisor of another release, or one that has not come so far, would end by it. And the
agent and its supervisors need no way to each other but this directory.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from determined.common.wire.doors import BELL


def ring(root: Path) -> bool:
    """False: nobody listens there."""
    try:
        pipe = os.open(root / BELL, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        # A full pipe was rung often enough.
        with contextlib.suppress(BlockingIOError):
            os.write(pipe, b"r")
    finally:
        os.close(pipe)
    return True


def listen(root: Path, rung: Callable[[], None]) -> None:
    """Call ``rung`` in a new thread each time the bell rings, until this process ends."""
    path = root / BELL
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    # Both ways: a pipe that nobody writes to would be at its end again and again.
    pipe = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def work() -> None:
        while os.read(pipe, 64):
            rung()

    threading.Thread(target=work, name="bell", daemon=True).start()


if __name__ == "__main__":
    sys.exit(0 if ring(Path(sys.argv[1])) else 1)
