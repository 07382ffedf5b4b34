"""Finds the exception that ended a Python process in what it wrote to stderr."""

from __future__ import annotations

import re

MAX_CHARACTERS = 300
# A traceback that was followed by more output than this was logged, and is not why it ended.
MAX_LINES_AFTER = 20

_BEGIN = re.compile(rb'Traceback \(most recent call last\):|  File "')
_EXCEPTION = re.compile(rb"[A-Za-z_][\w.]*(:\s|\s*$)")


class LastException:
    """Feed it every line of stderr, in order; :attr:`text` is the last exception's line."""

    def __init__(self) -> None:
        self._inside = False
        self._found: bytes | None = None
        self._lines_after = 0

    def feed(self, line: bytes) -> None:
        if _BEGIN.match(line):
            self._inside = True
            return
        if line[:1].isspace() or not line.strip():
            return
        if self._inside and _EXCEPTION.match(line):
            self._found, self._lines_after = line.strip(), 0
        else:
            self._lines_after += 1
        self._inside = False

    @property
    def text(self) -> str | None:
        """``ValueError: no luck``; None when there is none near the end."""
        if self._found is None or self._lines_after > MAX_LINES_AFTER:
            return None
        text = self._found.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
        return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "…"
