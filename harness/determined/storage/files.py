"""Listing, hashing and syncing files."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from determined import errors

_CHUNK = 1 << 20


@contextlib.contextmanager
def explained(action: str, path: os.PathLike[str] | str) -> Iterator[None]:
    """Turn an OSError into a StorageError that names the path and the reason."""
    try:
        yield
    except OSError as error:
        where = error.filename2 or error.filename or path
        reason = error.strerror or str(error) or type(error).__name__
        raise errors.StorageError(
            f"checkpoint storage: cannot {action} {where}: {reason}"
        ) from error


def list_files(root: Path) -> dict[str, int]:
    """Relative path → bytes of everything below ``root``; directories end in "/" and have 0.

    Symbolic links are followed. Raises OSError; StorageError for what is neither file nor directory.
    """
    found: dict[str, int] = {}

    def visit(directory: Path, prefix: str) -> None:
        with os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = prefix + entry.name
                if entry.is_dir():
                    found[name + "/"] = 0
                    visit(directory / entry.name, name + "/")
                elif entry.is_file():
                    found[name] = entry.stat().st_size
                else:
                    raise errors.StorageError(
                        f"checkpoint storage: {directory / entry.name} is neither a file nor a "
                        "directory (a dangling link, a socket?) and cannot be stored"
                    )

    visit(root, "")
    return found


def selected(paths: dict[str, int], selector: Callable[[str], bool] | None) -> dict[str, int]:
    """The paths ``selector`` accepts; all without one."""
    return {p: size for p, size in paths.items() if selector is None or selector(p)}


def checksum(path: Path) -> str:
    """``"sha256:<hex>"`` of a file."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def checksum_unless(path: Path, stop: Callable[[], bool]) -> str | None:
    """As :func:`checksum`; None when ``stop()`` became true before the file's end."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
            if stop():
                return None
    return "sha256:" + digest.hexdigest()


def copy_with_checksum(source: Path, target: Path) -> tuple[int, str]:
    """Copy a file; (bytes, ``"sha256:<hex>"``) of what was copied."""
    digest = hashlib.sha256()
    size = 0
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(_CHUNK):
            digest.update(chunk)
            writer.write(chunk)
            size += len(chunk)
    return size, "sha256:" + digest.hexdigest()


def sync(path: Path) -> None:
    """Have a file's bytes, or a directory's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
