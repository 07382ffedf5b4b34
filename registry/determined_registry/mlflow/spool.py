"""Files that were sent for a checkpoint that is not complete yet: in a folder for each, which outlives this
process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from determined_registry.mlflow import configured


def folder_of(checkpoint: UUID) -> Path:
    return Path(configured.current().spool) / str(checkpoint)


def files(checkpoint: UUID) -> dict[str, int]:
    """Each path and its bytes."""
    if not configured.is_there():
        return {}
    folder = folder_of(checkpoint)
    return {
        file.relative_to(folder).as_posix(): file.stat().st_size
        for file in folder.rglob("*")
        if file.is_file() and not is_hidden(file.name)
    }


def is_hidden(name: str) -> bool:
    return posixpath.basename(name).startswith(".")


@contextlib.contextmanager
def completing(checkpoint: UUID) -> Iterator[None]:
    """Take the lock of a checkpoint that is completed or gets another file. Without it the second of two
    completions would find no files, and a file that came in between would be lost. The checkpoint's folder is
    the lock, because other processes of the service have servers like this one."""
    folder = folder_of(checkpoint)
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_there(descriptor, folder):
                yield
                return
        finally:
            os.close(descriptor)


def _is_there(descriptor: int, folder: Path) -> bool:
    """True if the path still leads to this folder; an earlier holder of the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False
