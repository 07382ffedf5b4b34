"""A first-in, first-out queue of records in a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO


class FileQueue:
    """Records without newlines. ``open_file`` makes the file, unbuffered and to be read and written, when
    the first record comes; the file is emptied when the last record is taken. Not thread-safe.
    """

    def __init__(self, open_file: Callable[[], BinaryIO]) -> None:
        self._open = open_file
        self._file: BinaryIO | None = None
        self._read_at = 0
        self._end = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def file_size(self) -> int:
        """Bytes of the file, including records that were taken already."""
        return self._end

    def put(self, record: bytes) -> None:
        """Append a record. Raises OSError when it cannot be written as a whole; earlier records stay."""
        if self._file is None:
            self._file = self._open()
        self._file.seek(self._end)
        line = record + b"\n"
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
        except OSError:
            # Half a record must not be read.
            self._file.truncate(self._end)
            raise
        self._end += len(line)
        self._count += 1

    def take(
        self, max_records: int, max_bytes: int, size: Callable[[bytes], int] = len
    ) -> list[bytes]:
        """The oldest records, at most ``max_bytes`` of them by ``size`` unless the first alone is more."""
        taken: list[bytes] = []
        if self._file is None:
            return taken
        total = 0
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            reader.seek(self._read_at)
            while self._count and len(taken) < max_records:
                record = reader.readline()[:-1]
                total += size(record)
                if taken and total > max_bytes:
                    break
                taken.append(record)
                self._read_at += len(record) + 1
                self._count -= 1
        if not self._count:
            self._file.truncate(0)
            self._read_at = self._end = 0
        return taken

    def close(self) -> bool:
        """Drop all records. Returns whether there was a file."""
        was_open = self._file is not None
        if self._file is not None:
            self._file.close()
            self._file = None
        self._count = self._read_at = self._end = 0
        return was_open
