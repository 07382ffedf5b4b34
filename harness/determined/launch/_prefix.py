"""Lines of several processes in one stream: each with its rank in front."""

from __future__ import annotations

import os
import re

# Progress bars begin their line anew; a carriage return at the very end may be half of a line's end.
_LINE_ENDS = re.compile(rb"(\r?\n|\r(?=[^\n]))")


class PrefixedCopy:
    """Copies descriptor ``source`` to ``target``, line by line, each with ``[rank=N]`` in front."""

    def __init__(self, rank: int, source: int, target: int) -> None:
        self.source = source
        self._target = target
        self._prefix = f"[rank={rank}] ".encode()
        self._rest = b""

    def copy(self) -> bool:
        """Reads once (waits for something to read); False at the end, with everything written."""
        part = os.read(self.source, 1 << 16)
        if not part:
            self.finish()
            return False
        *lines, self._rest = _LINE_ENDS.split(self._rest + part)
        for line, end in zip(lines[::2], lines[1::2], strict=True):
            self._write(line + end)
        return True

    def finish(self) -> None:
        """Writes the last line, which has no end."""
        if self._rest:
            self._write(self._rest + b"\n")
        self._rest = b""

    def _write(self, line: bytes) -> None:
        # One write a line: other ranks write to the same pipe.
        left = self._prefix + line
        while left:
            left = left[os.write(self._target, left) :]
