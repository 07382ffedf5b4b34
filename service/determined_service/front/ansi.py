"""Lines of logs as pieces with the colours that programs gave them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SGR = re.compile("\x1b\\[([0-9;:]{0,60})m")
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
PIECES = 100
"""Pieces of one line; its end has the last one's look."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text with one look. ``look``: names of classes, ``ansi-red bold`` for example."""

    text: str
    look: str


def pieces(line: str) -> list[Piece]:
    """The line without the sequences for colours, which become looks. Colours out of 256 or more, and
    backgrounds, are left out."""
    if "\x1b" not in line:
        return [Piece(line, "")]
    found: list[Piece] = []
    color, bold, place = "", False, 0
    for one in _SGR.finditer(line):
        text = line[place : one.start()]
        if text and len(found) < PIECES:
            found.append(Piece(text, _look(color, bold)))
            place = one.end()
        elif not text:
            place = one.end()
        color, bold = _changed(one.group(1), color, bold)
    found.append(Piece(_SGR.sub("", line[place:]), _look(color, bold)))
    return [one for one in found if one.text]


def _look(color: str, bold: bool) -> str:
    return " ".join(filter(None, (color and f"ansi-{color}", "bold" if bold else "")))


def _changed(codes: str, color: str, bold: bool) -> tuple[str, bool]:
    numbers = [int(one) if one.isdigit() else 0 for one in re.split("[;:]", codes)]
    while numbers:
        code = numbers.pop(0)
        if code == 0:
            color, bold = "", False
        elif code == 1:
            bold = True
        elif code == 22:
            bold = False
        elif code in (38, 48):
            # 5;N or 2;R;G;B: the colour itself follows.
            del numbers[: 2 if numbers[:1] == [5] else 4]
        elif 30 <= code <= 37 or 90 <= code <= 97:
            color = _NAMES[code % 10]
        elif code == 39:
            color = ""
    return color, bold
