"""Turns the bytes of a process's output into log lines."""

from __future__ import annotations

import re
from dataclasses import dataclass

# A line without an end is cut here, so that a process cannot fill the memory with one.
LONGEST_LINE = 4 << 20

# determined.LOG_FORMAT: "INFO: [1234] name: text"
_LEVEL = re.compile(r"(TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL): \[\d+\] ")
# Put in front by launch layers that start one process per slot.
_RANK = re.compile(rb"\[rank=(\d{1,9})\] ?")


class LineSplitter:
    r"""Cuts one stream into lines, each with its end (``\n``, ``\r\n``, or a lone ``\r``).

    A lone carriage return ends a line because progress bars use it: their latest state would
    otherwise be seen only when they are done.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes."""
        if self.is_progress:
            # Held back by the last call, because a "\n" might have followed.
            data = self._take() + data
        if b"\n" not in data and b"\r" not in data:
            return self._hold(data)
        lines = data.splitlines(keepends=True)
        if self._parts:
            lines[0] = self._take() + lines[0]
        last = lines[-1]
        if not last.endswith(b"\n"):
            lines.pop()
            lines += self._hold(last)
        return lines

    def _hold(self, data: bytes) -> list[bytes]:
        if data:
            self._parts.append(data)
            self._size += len(data)
        return [self._take()] if self._size >= LONGEST_LINE else []

    def _take(self) -> bytes:
        held = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return held

    @property
    def held(self) -> bytes:
        """The unfinished line."""
        return b"".join(self._parts)

    @property
    def is_progress(self) -> bool:
        r"""The held line ends in ``\r``."""
        return bool(self._parts) and self._parts[-1].endswith(b"\r")

    def flush_progress(self) -> list[bytes]:
        r"""The held line when it :attr:`is_progress`: nothing followed it for a while."""
        return [self._take()] if self.is_progress else []

    def close(self) -> list[bytes]:
        """The last line, which has no end."""
        return [self._take()] if self._parts else []


@dataclass(frozen=True)
class ParsedLine:
    """``rank`` and ``level`` are None when the line does not say; ``log`` is without the rank."""

    log: str
    level: str | None
    rank: int | None


def without_rank(line: bytes) -> tuple[int | None, bytes]:
    """The rank in front of ``line`` (None: it has none), and the rest of the line."""
    found = _RANK.match(line) if line.startswith(b"[rank=") else None
    return (None, line) if found is None else (int(found[1]), line[found.end() :])


def parse(line: bytes) -> ParsedLine:
    """Decodes a line as UTF-8; any other byte is written as ``\\xff``. NUL stays."""
    rank, rest = without_rank(line)
    text = rest.decode("utf-8", "backslashreplace")
    level = _LEVEL.match(text) if text[:1] in "TDIWEC" else None
    return ParsedLine(text, level[1] if level else None, rank)
