"""Directories of this machine that several legs use at a time, and that go when nobody uses them.

The supervisor of each leg holds the file ``lock`` in the directory, together with the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

LOCK = "lock"
# What is being removed: a name that begins so is nobody's.
GONE = ".gone-"


@contextlib.contextmanager
def used(root: Path) -> Iterator[Path]:
    """Makes the directory if it is missing; nobody removes it within the block.

    The lock ends with this process. Raises OSError.
    """
    while True:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            descriptor = open_lock(root / LOCK)
        except FileNotFoundError:  # it was removed just now
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_file(root / LOCK, descriptor):
            break
        os.close(descriptor)
    try:
        yield root
    finally:
        os.close(descriptor)


def remove(root: Path) -> bool:
    """Removes the directory unless a leg uses it; whether it is gone. Files made undeletable stay."""
    try:
        descriptor = open_lock(root / LOCK)
    except (FileNotFoundError, NotADirectoryError):
        return not root.exists()
    gone = root.with_name(new_gone())
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed first: a leg that starts meanwhile makes a new one, and finds nothing half removed.
        root.rename(gone)
    except (BlockingIOError, FileNotFoundError):
        return not root.exists()
    finally:
        os.close(descriptor)
    shutil.rmtree(gone, ignore_errors=True)
    return True


def new_gone() -> str:
    """A new name for a directory that is being removed."""
    return f"{GONE}{secrets.token_hex(6)}"


def children(folder: Path) -> list[Path]:
    """The entries of a folder; empty if it does not exist."""
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_file(path: Path, descriptor: int) -> bool:
    """True if ``path`` is still the file that was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
