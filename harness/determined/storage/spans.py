"""Reading parts of a checkpoint's files: :class:`Span`, and opening a file without following links."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from determined import errors

PIECE_BYTES = 1 << 20
"""How many bytes of a file are read at once."""

_LINK = (errno.ELOOP, errno.ENOTDIR)


class Span(NamedTuple):
    """The bytes of the file ``path`` (relative to its checkpoint) from ``start`` up to ``end``."""

    path: str
    start: int
    end: int


def is_inside(path: str) -> bool:
    """Whether a relative path of a checkpoint's file stays within the checkpoint."""
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts and "\0" not in path


@contextlib.contextmanager
def opened(root: Path, *parts: str) -> Iterator[int]:
    """A descriptor of the file or directory ``root``/``parts…``, for the block.

    ``root`` may be a link; below it none is followed, also when somebody lays one meanwhile. A pipe is opened
    without waiting for a writer. Raises OSError; ELOOP or ENOTDIR for a link.
    """
    names = [name for part in parts for name in PurePosixPath(part).parts]
    if any(name in ("/", "..") for name in names):
        raise OSError(errno.ENOENT, "lies outside", str(root.joinpath(*parts)))
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            inner = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor
            )
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def pieces(storage_id: str, where: Path, descriptor: int, span: Span) -> Iterator[bytes]:
    """The bytes of ``span`` of an open file, at most PIECE_BYTES at once. ``where``: its path, for messages.

    Raises errors.CheckpointCorrupted when it ends before; errors.StorageError for what is no file.
    """
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise errors.StorageError(f"checkpoint {storage_id}: {where} is not a file")
    short = errors.CheckpointCorrupted(
        f"checkpoint {storage_id}: {where} has {found.st_size} bytes, {span.end} are wanted"
    )
    if found.st_size < span.end:
        raise short
    at = span.start
    while at < span.end:
        piece = os.pread(descriptor, min(PIECE_BYTES, span.end - at), at)
        if not piece:  # cut meanwhile
            raise short
        yield piece
        at += len(piece)


def is_link(error: OSError) -> bool:
    """Whether :func:`opened` met a link, or a file where a directory should be."""
    return error.errno in _LINK
