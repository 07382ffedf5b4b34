"""The folder for databases and clusters of tests: in memory, if the machine has enough.

Each test has a separate database of 700 files. On a shared disk, making them takes ten times the CPU, and
each commit of a cluster's Postgres waits for the disk.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile

import psutil

MEMORY = "/dev/shm"
ENOUGH = 6 << 30
"""Bytes that must be free, both there and of the machine's memory; a suite in three processes uses two."""


def memory_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary directory whose path is short enough for a socket's."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=_place())


@functools.cache
def _place() -> str | None:
    try:
        programs_may_not_run = os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
        free = min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available)
    except OSError:
        return None
    fits = free >= ENOUGH and not programs_may_not_run and os.access(MEMORY, os.W_OK | os.X_OK)
    return MEMORY if fits else None
