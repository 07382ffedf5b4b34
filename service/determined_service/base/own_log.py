"""The latest lines of this process' own log: :class:`OwnLog`."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from determined.expconf.masking import masked_text

KEPT_CHARS = 1 << 20
"""Of all lines together."""
LINE_CHARS = 8192
"""The rest of a longer one is left out."""


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """``number``: counts from 0 since the process began. ``time``: seconds since the epoch. ``level``: its
    name in Python. ``message``: may have several lines (a traceback); what looks like a secret is masked."""

    number: int
    time: float
    level: str
    message: str


class OwnLog(logging.Handler):
    """Keeps the latest lines that it handles in memory, at most :data:`KEPT_CHARS` characters.

    ``tell`` is called after each line, by the thread that logs it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        self.tell: Callable[[], object] | None = None
        self._lines: deque[LoggedLine] = deque()
        self._chars = 0
        self._next = 0

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Every logger's lines come here during the block."""
        root = logging.getLogger()
        root.addHandler(self)
        try:
            yield
        finally:
            root.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Called with the handler's lock."""
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        message = masked_text(text[:LINE_CHARS])
        self._lines.append(LoggedLine(self._next, record.created, record.levelname, message))
        self._next += 1
        self._chars += len(message)
        while self._chars > KEPT_CHARS:
            self._chars -= len(self._lines.popleft().message)
        if self.tell is not None:
            self.tell()

    def before_end(self, count: int) -> int:
        """The number of the line with which the last ``count`` lines begin."""
        return max(self._next - count, 0)

    def lines(self, first: int, most: int) -> list[LoggedLine]:
        """At most ``most`` of the kept lines, from the number ``first`` on."""
        with self.lock or contextlib.nullcontext():
            start = max(first - self._lines[0].number, 0) if self._lines else 0
            return list(itertools.islice(self._lines, start, start + most))
