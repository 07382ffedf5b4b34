"""The note of a training process that it has reports which are not sent yet.

A process that ends by ``os._exit()`` or by a signal runs no exit handlers, so nobody sends its last reports.
Its supervisor finds the note and says so. The note is a file of the task's run directory, which exists while
reports wait.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

_BEGINNING = "unsent-"
MOST, LONGEST = 64, 10
"""Of notes, and of the digits of a process id."""


class UnsentNote:
    """This process's note. Outside of a task there is none, and a note that cannot be written is left out."""

    def __init__(self) -> None:
        run_dir = os.environ.get("DET_RUN_DIR")
        self._path = os.path.join(run_dir, f"{_BEGINNING}{os.getpid()}") if run_dir else None  # noqa: PTH118
        self._is_there = False

    def put(self) -> None:
        if not self._is_there and self._path is not None:
            self._is_there = True
            with contextlib.suppress(OSError):
                os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def drop(self) -> None:
        if self._is_there and self._path is not None:
            self._is_there = False
            with contextlib.suppress(OSError):
                os.unlink(self._path)  # noqa: PTH108


def found(run_dir: Path) -> list[int]:
    """The ids of the processes whose notes are there, :data:`MOST` at most: a task may write anything."""
    notes = itertools.islice(run_dir.glob(f"{_BEGINNING}*"), MOST)
    names = (path.name.removeprefix(_BEGINNING) for path in notes)
    return sorted(int(name) for name in names if name.isdecimal() and len(name) <= LONGEST)
