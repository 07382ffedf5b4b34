"""Local copies of checkpoints that were read to verify them, so that they are not read from the storage
twice.

A leg's supervisor verifies and its training process restores; both use the same local directory. In it
``<directory>/<storage id>/`` is a checkpoint in the format of :class:`DirectoryStorageManager`. It appears
once every byte was compared.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from determined import errors
from determined.storage import files
from determined.storage.base import Manifest, Selector
from determined.storage.directory import DirectoryStorageManager

FOLDER = "verified"
"""Below a task's ``DET_RUN_DIR``."""


def of_this_task() -> Path | None:
    """The directory of the task that this process belongs to; None outside of one."""
    run_dir = os.environ.get("DET_RUN_DIR")
    return Path(run_dir) / FOLDER if run_dir else None


def has_room(directory: Path, manifest: Manifest) -> bool:
    """True if a copy would leave at least its own size free: the training writes checkpoints of that size."""
    size = sum(manifest.resources.values())
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(directory).free >= 2 * size
    except OSError:
        return False


@contextlib.contextmanager
def draft(directory: Path) -> Iterator[Path]:
    """An empty directory beside the copies, which is gone at the block's end; :func:`keep` saves it."""
    path = directory / ".draft"
    with files.explained("write", path):
        shutil.rmtree(path, ignore_errors=True)  # left by a process that was killed
        path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def keep(path: Path, storage_id: str, manifest: Manifest) -> None:
    """Turn the draft ``path``, which holds all files of ``manifest``, into the copy of this checkpoint."""
    final = path.with_name(storage_id)
    with files.explained("write", final):
        (path / files.MANIFEST).write_bytes(manifest.to_json())
        drop(path.parent, storage_id)
        path.rename(final)


def take(directory: Path | None, storage_id: str, target: Path) -> bool:
    """Move the copy to the empty directory ``target``, which only the caller uses from now on.

    Returns False if there was no copy, or if another process uses it or has taken it.
    """
    if directory is None:
        return False
    try:
        (directory / storage_id).rename(target)
        (target / files.MANIFEST).unlink()
    except OSError:
        return False
    return True


def read(
    directory: Path | None, storage_id: str, target: Path, selector: Selector | None
) -> dict[str, int] | None:
    """Copy the files that ``selector`` accepts into ``target``, verified. Returns their paths and sizes,
    None without a copy.

    A copy that is read as a whole is removed afterwards, since it takes space and most trials restore once.
    """
    if directory is None or not (directory / storage_id).is_dir():
        return None
    try:
        found = DirectoryStorageManager(directory).download(storage_id, target, selector)
    except errors.StorageError:
        # Taken by another process meanwhile, or changed: the storage has it.
        return None
    if selector is None:
        drop(directory, storage_id)
    return found


def drop(directory: Path | None, storage_id: str) -> None:
    """Remove the copy if it exists."""
    if directory is not None:
        shutil.rmtree(directory / storage_id, ignore_errors=True)
