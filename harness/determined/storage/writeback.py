"""Starts writing large files to the disk before their writer has finished."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

SECONDS = 0.03
WORTH_IT_BYTES = 32 << 20
_WRITE = 2
"""SYNC_FILE_RANGE_WRITE of Linux: begin to write what is not being written yet, and do not wait."""


@contextlib.contextmanager
def written_early(directory: Path) -> Iterator[None]:
    """While the block writes large files below ``directory``, start flushing them to the disk.

    Otherwise the system waits for half a minute, or for the fsync at the end, which then has to do all the
    work. This is only an optimisation; it does nothing where the system has no such call.
    """
    begin = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if begin is None:
        yield
        return
    begin.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    done = threading.Event()

    def watch() -> None:
        # No Backoff: these are the pauses of one watcher, not the tries of many clients.
        delay = SECONDS
        while not done.wait(delay):
            delay = min(2 * delay, 16 * SECONDS)
            # Files come and go as the writer likes.
            with contextlib.suppress(OSError):
                for path in directory.rglob("*"):
                    if path.is_file() and path.stat().st_size >= WORTH_IT_BYTES:
                        _begin(begin, path)

    thread = threading.Thread(target=watch, name="checkpoint-writeback", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _begin(call: Callable[..., int], path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        call(descriptor, 0, 0, _WRITE)
    finally:
        os.close(descriptor)
