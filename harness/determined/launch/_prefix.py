"""Merges the output of several processes into one stream; each line gets its rank in front."""

from __future__ import annotations

import os
import re

# Progress bars begin their line anew; a carriage return at the very end may be half of a line's end.
_LINE_ENDS = re.compile(rb"(\r?\n|\r(?=[^\n]))")

LONGEST_LINE = 2 << 20
"""A longer line is split into parts. The platform splits at the same length, so each part needs a rank.
"""


class PrefixedCopy:
    """Copies descriptor ``source`` to ``target``, line by line, each with ``[rank=N]`` in front."""

    def __init__(self, rank: int, source: int, target: int) -> None:
        self.source = source
        self._target = target
        self._prefix = f"[rank={rank}] ".encode()
        self._held: list[bytes] = []
        self._size = 0

    def copy(self) -> bool:
        """Read once (waits for output). Returns False at the end, when everything is written."""
        part = os.read(self.source, 1 << 16)
        if not part:
            self.finish()
            return False
        if self._held and self._held[-1].endswith(b"\r"):
            self._held[-1] = self._held[-1][:-1]
            part = b"\r" + part
        *lines, rest = _LINE_ENDS.split(part)
        for line, end in zip(lines[::2], lines[1::2], strict=True):
            self._write(self._take() + line + end)
        if rest:
            self._held.append(rest)
            self._size += len(rest)
        if self._size > LONGEST_LINE:
            self.finish()
        return True

    def _take(self) -> bytes:
        held = b"".join(self._held)
        self._held.clear()
        self._size = 0
        return held

    def finish(self) -> None:
        """Write the last line, which has no newline."""
        rest = self._take()
        if rest:
            self._write(rest + b"\n")

    def _write(self, line: bytes) -> None:
        # One write a line: other ranks write to the same pipe.
        left = self._prefix + line
        while left:
            left = left[os.write(self._target, left) :]
