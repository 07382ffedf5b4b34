"""What waits for the service, in a file, once memory is full of it."""

from __future__ import annotations

import tempfile
from typing import BinaryIO

LIMIT_BYTES = 1 << 30


class SpoolFull(Exception):
    """It takes no more; what it has stays."""


class Spool:
    """Pairs of a head and a body, both without newlines, first in first out.

    The file has no name: whoever is killed leaves nothing behind. It is made with the first pair, in
    TMPDIR, and emptied when the last one is taken. Not thread-safe.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._file: BinaryIO | None = None
        self._read_at = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, head: bytes, body: bytes) -> None:
        """Raises SpoolFull when there is no room, here or on the disk."""
        end = 0
        try:
            if self._file is None:
                # Unbuffered: what write() has taken is in the file, or was refused.
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            end = self._file.seek(0, 2)
            line = head + b"\n" + body + b"\n"
            if end + len(line) > self._limit:
                raise SpoolFull(f"{end} bytes wait in a file, its limit is {self._limit}")
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
        except OSError as error:
            if self._file is not None:
                # Half a pair must not be read.
                self._file.truncate(end)
            raise SpoolFull(f"{tempfile.gettempdir()}: {error}") from error
        self._count += 1

    def take(self, max_pairs: int, max_bytes: int) -> list[tuple[bytes, bytes]]:
        """The oldest pairs, at most ``max_bytes`` of bodies unless the first one alone is more."""
        taken: list[tuple[bytes, bytes]] = []
        if self._file is None:
            return taken
        size = 0
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            reader.seek(self._read_at)
            while self._count and len(taken) < max_pairs:
                head, body = reader.readline(), reader.readline()
                size += len(body) - 1
                if taken and size > max_bytes:
                    break
                taken.append((head[:-1], body[:-1]))
                self._read_at += len(head) + len(body)
                self._count -= 1
        if not self._count:
            self._file.truncate(0)
            self._read_at = 0
        return taken

    def close(self) -> None:
        """Forgets what is left."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._count = self._read_at = 0
