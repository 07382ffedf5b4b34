"""A file for reports that wait for the service when memory is full."""

from __future__ import annotations

import tempfile
from typing import BinaryIO

from determined.common.file_queue import FileQueue

LIMIT_BYTES = 1 << 30
_TAB = b"\t"


class SpoolFull(Exception):
    """The file takes no more; its contents stay."""


class Spool:
    """Pairs of a head without tabs and a body, both without newlines, first in first out.

    The file is in TMPDIR and has no name, so a killed process leaves nothing behind. Not thread-safe.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._queue = FileQueue(_unnamed_file)

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, head: bytes, body: bytes) -> None:
        """Append a request. Raises SpoolFull when neither the limit nor the disk has room for it."""
        waiting = self._queue.file_size
        if waiting + len(head) + len(body) + 2 > self._limit:
            raise SpoolFull(f"{waiting} bytes wait in a file, its limit is {self._limit}")
        try:
            self._queue.put(head + _TAB + body)
        except OSError as error:
            raise SpoolFull(f"{tempfile.gettempdir()}: {error}") from error

    def take(self, max_pairs: int, max_bytes: int) -> list[tuple[bytes, bytes]]:
        """The oldest pairs, at most ``max_bytes`` of bodies unless the first one alone is more."""
        records = self._queue.take(max_pairs, max_bytes, lambda record: len(_split(record)[1]))
        return [_split(record) for record in records]

    def close(self) -> None:
        """Drop the rest."""
        self._queue.close()


def _unnamed_file() -> BinaryIO:
    return tempfile.TemporaryFile(buffering=0)


def _split(record: bytes) -> tuple[bytes, bytes]:
    head, _, body = record.partition(_TAB)
    return head, body
