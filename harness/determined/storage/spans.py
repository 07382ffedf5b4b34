"""Reading parts of a checkpoint's files: :class:`Span`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from determined import errors

PIECE_BYTES = 1 << 20
"""Bytes of a file that are read at once."""


class Span(NamedTuple):
    """The bytes of the file ``path`` (relative to its checkpoint) from ``start`` up to ``end``."""

    path: str
    start: int
    end: int


def is_inside(path: str) -> bool:
    """True if a relative path of a checkpoint's file stays within the checkpoint."""
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts and "\0" not in path


def pieces(storage_id: str, where: Path, descriptor: int, span: Span) -> Iterator[bytes]:
    """The bytes of ``span`` of an open file, at most PIECE_BYTES at once. ``where``: its path, for messages.

    Raises errors.CheckpointCorrupted when it ends before; errors.StorageError if it is not a file.
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
