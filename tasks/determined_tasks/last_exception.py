"""Finds, in the output of a Python process, the exception that ended it and where that was raised."""

from __future__ import annotations

import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import determined
from determined.common.printable import without_colours
from determined.common.tracebacks import BEGIN

MAX_CHARACTERS = 300
MAX_CODE_CHARACTERS = 120
# A traceback that was followed by more output than this may have been logged, and not be why it ended.
MAX_LINES_AFTER = 20

# loguru marks the frame where it caught the exception.
_FRAME = re.compile(r'(?:  |> )File "(.{1,4096})", line (\d{1,9})')
_MARKS = re.compile(r"[\s~^]*$")
_EXCEPTION = re.compile(r"[^\W\d][\w.<>]*(:\s|:?$)")
# An exception group has its own beside those that are in it.
_GROUP = re.compile(r" *\+ Exception Group Traceback ")
_GROUP_LINE = re.compile(r" *\| ?")
_GROUP_OPENS, _GROUP_NEXT = re.compile(r" *\+-\+-"), re.compile(r" *\+-")
# rich draws a frame around everything but the exception.
_BOX_PLACE = re.compile(r"(\S.{0,4096}):(\d{1,9}) in \S+$")
_BOX_CODE = re.compile(r"❱ *\d{1,9} (?:│ *)*(.*)$")
# Printed while the process ends of something else, or goes on.
_IGNORED, _OF_THREAD = "Exception ignored ", "Exception in thread "
# Raised because another process had failed, which told its own.
_CONSEQUENCE = re.compile(r"([\w.]+\.)?(ChildFailedError|WorkerLost):")
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
        where = f"{cut(self.file, MAX_CODE_CHARACTERS)}, line {self.line}"
        return f"{where}: {cut(self.code, MAX_CODE_CHARACTERS)}" if self.code else where


@dataclass
class _Group:
    """An exception group being read; ``is_first``: nothing of its second exception was read."""

    line: str = ""
    is_first: bool = True


class LastException:
    """Feed it every line of one stream, in order; :attr:`text` tells of the last exception.

    ``workdir``: the directory with the user's files. The place is the last frame of the traceback in one of
    them, or else in any file that does not belong to an installed package, the standard library or this SDK.
    """

    def __init__(self, workdir: Path | None = None) -> None:
        # A process that asks for its working directory gets it without symbolic links.
        self._workdirs = () if workdir is None else (f"{workdir}/", f"{workdir.resolve()}/")
        self._inside = False
        self._group: _Group | None = None
        self._prelude = ""
        # The beginning of a path for which rich's frame was too narrow.
        self._path = ""
        self._in_frame: _Frame | None = None
        # The traceback being read: its last frame in the user's files, and in other files of the environment.
        self._users: _Frame | None = None
        self._elsewhere: _Frame | None = None
        self._found: tuple[str, _Frame | None] | None = None
        self.lines_after = 0

    def feed(self, line: str) -> bool:
        """True if an exception was found in ``line``."""
        line = (without_colours(line) if "\x1b" in line else line).rstrip()
        rest = self._within_group(line)
        if rest is None:
            return False
        line = rest
        if "Traceback" in line and BEGIN.match(line):
            self._begin()
            return False
        if frame := _FRAME.match(line):
            # A SyntaxError has no other beginning.
            self._inside = True
            self._in_frame = self._note(frame[1], int(frame[2]))
            return False
        if self._inside and line.startswith(("│", "╭", "╰")):
            self._read_box(line.strip("│╭╰ "))
            return False
        if not line or line[0].isspace():
            if self._in_frame is not None and not _MARKS.match(line):
                self._in_frame.code = self._in_frame.code or line.strip()
            return False
        if line.startswith((_IGNORED, _OF_THREAD)):
            self._prelude = line
            return False
        found = self._inside and _EXCEPTION.match(line) is not None and self._take(line)
        if not found:
            self.lines_after += 1
        self._prelude = ""
        self._begin(inside=False)
        return found

    def _begin(self, inside: bool = True) -> None:
        self._inside, self._path = inside, ""
        self._in_frame = self._users = self._elsewhere = None

    def _within_group(self, line: str) -> str | None:
        """``line`` without the prefix of an exception group. None: there is nothing else in it."""
        if "Traceback" in line and _GROUP.match(line):
            self._group = self._group or _Group()
            self._begin()
            return None
        if self._group is None:
            return line
        if mark := _GROUP_LINE.match(line):
            return line[mark.end() :]
        if _GROUP_OPENS.match(line):
            # An exception without a traceback follows.
            self._begin()
            return None
        if _GROUP_NEXT.match(line):
            self._group.is_first = False
            return None
        self._group = None
        return line

    def _take(self, line: str) -> bool:
        """Keep the exception in ``line`` if it may be the reason of the process's end. Returns True if
        kept."""
        if self._prelude.startswith(_IGNORED):
            return False
        if self.text is not None and (self._prelude or _CONSEQUENCE.match(line)):
            return False
        place = self._users or self._elsewhere
        if self._group is not None:
            if not self._group.is_first:
                return False
            if not self._group.line:
                self._group.line = line
            else:
                line = f"{cut(self._group.line, MAX_CODE_CHARACTERS)}: {line}"
                place = place or (self._found[1] if self._found else None)
        self._found, self.lines_after = (line, place), 0
        return True

    def _read_box(self, line: str) -> None:
        if place := _BOX_PLACE.match(self._path + line):
            self._in_frame, self._path = self._note(place[1], int(place[2])), ""
        elif self._path or line.startswith("/"):
            self._path = (self._path + line)[:4096]
        elif self._in_frame is not None and (code := _BOX_CODE.match(line)):
            self._in_frame.code = code[1]

    def _note(self, file: str, line: int) -> _Frame | None:
        file = file.replace("\0", "\\x00")
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
        return self.early if self.lines_after <= MAX_LINES_AFTER else None

    @property
    def early(self) -> str | None:
        """As :attr:`text`, however much was printed afterwards."""
        if self._found is None:
            return None
        line, place = self._found
        words = cut(line, MAX_CHARACTERS)
        return (words if place is None else f"{words} ({place})").replace("\0", "\\x00")


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "…"
