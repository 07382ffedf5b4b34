"""Finds the exception that ended a Python process in what it wrote to stderr, and where it was raised."""

from __future__ import annotations

import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import determined
from determined_tasks.log_lines import without_rank

MAX_RANKS = 1024
MAX_CHARACTERS = 300
MAX_CODE_CHARACTERS = 120
# A traceback that was followed by more output than this was logged, and is not why it ended.
MAX_LINES_AFTER = 20

_BEGIN = re.compile(rb"Traceback \(most recent call last\):")
_FRAME = re.compile(rb'  File "(.{1,4096})", line (\d{1,9})')
_MARKS = re.compile(rb"[\s~^]*$")
_EXCEPTION = re.compile(rb"[A-Za-z_][\w.]*(:\s|\s*$)")
# Not code of the user's: installed packages, the standard library, this SDK, code without a file.
_LIBRARIES = re.compile(r"(^|/)(site|dist)-packages/|(^|/)lib(64)?/python\d[^/]*/|^<")
_OWN = (sysconfig.get_path("stdlib") + "/", str(Path(determined.__file__).parent) + "/")


@dataclass
class _Frame:
    """A line of code that a traceback names; ``file``: relative to the model definition if it is inside."""

    file: str
    line: int
    code: str = ""

    def __str__(self) -> str:
        where = f"{_cut(self.file, MAX_CODE_CHARACTERS)}, line {self.line}"
        return f"{where}: {_cut(self.code, MAX_CODE_CHARACTERS)}" if self.code else where


class LastException:
    """Feed it every line of stderr, in order; :attr:`text` tells of the last exception.

    ``workdir``: the directory with the user's files. The place is the last frame of the traceback in one of
    them, or else in any file that does not belong to an installed package, the standard library or this SDK.
    """

    def __init__(self, workdir: Path | None = None) -> None:
        # A process that asks for its working directory gets it without symbolic links.
        self._workdirs = () if workdir is None else (f"{workdir}/", f"{workdir.resolve()}/")
        self._inside = False
        self._in_frame: _Frame | None = None
        # Of the traceback being read: its last frame in the user's files, and in other files of theirs.
        self._users: _Frame | None = None
        self._elsewhere: _Frame | None = None
        self._found: tuple[bytes, _Frame | None] | None = None
        self._lines_after = 0

    def feed(self, line: bytes) -> bool:
        """Whether an exception was found in ``line``."""
        if _BEGIN.match(line):
            self._inside = True
            self._in_frame = self._users = self._elsewhere = None
            return False
        if frame := _FRAME.match(line):
            # A SyntaxError has no other beginning.
            self._inside = True
            self._in_frame = self._note(_text(frame[1]), int(frame[2]))
            return False
        if line[:1].isspace() or not line.strip():
            if self._in_frame is not None and not _MARKS.match(line):
                self._in_frame.code = self._in_frame.code or _text(line.strip())
            return False
        found = self._inside and _EXCEPTION.match(line) is not None
        if found:
            self._found, self._lines_after = (line.strip(), self._users or self._elsewhere), 0
        else:
            self._lines_after += 1
        self._inside = False
        self._in_frame = self._users = self._elsewhere = None
        return found

    def _note(self, file: str, line: int) -> _Frame | None:
        for workdir in self._workdirs:
            file = file.removeprefix(workdir)
        if _LIBRARIES.search(file) or file.startswith(_OWN):
            return None
        if file.startswith("/"):
            self._elsewhere = _Frame(file, line)
            return self._elsewhere
        self._users = _Frame(file.removeprefix("./"), line)
        return self._users

    @property
    def text(self) -> str | None:
        """``ValueError: no luck (train.py, line 4: raise ValueError(word))``.

        None when there is no exception near the end.
        """
        if self._found is None or self._lines_after > MAX_LINES_AFTER:
            return None
        line, place = self._found
        words = _cut(_text(line), MAX_CHARACTERS)
        return words if place is None else f"{words} ({place})"


class LastExceptions:
    """As :class:`LastException`, for several processes whose lines of stderr begin with ``[rank=N]``.

    Their lines come in any order, so each rank is read by itself.
    """

    def __init__(self, workdir: Path | None = None) -> None:
        self._workdir = workdir
        # None: lines without a rank, the launcher's own.
        self._readers: dict[int | None, LastException] = {None: LastException(workdir)}
        # Ranks by the time of their last exception.
        self._order: dict[int | None, None] = {}

    def feed(self, line: bytes) -> None:
        rank, line = without_rank(line)
        reader = self._readers.get(rank)
        if reader is None:
            if len(self._readers) > MAX_RANKS:
                return
            reader = self._readers[rank] = LastException(self._workdir)
        if reader.feed(line):
            self._order.pop(rank, None)
            self._order[rank] = None

    @property
    def text(self) -> str | None:
        """The exception that came first, of those that ended a rank: the others are often its consequences.

        Without one, the launcher's own. None when there is none.
        """
        for rank in self._order:
            text = self._readers[rank].text
            if rank is not None and text is not None:
                return f"rank {rank}: {text}"
        return self._readers[None].text


def _text(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace").replace("\0", "\\x00")


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "…"
