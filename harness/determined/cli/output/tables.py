"""Drawing a table on a terminal, and aligned text in a pipe. Cells have passed ``printing.plain``.

Not rich's tables, which need a second for 1,000 rows.
"""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Sequence
from typing import TextIO

from determined.cli.printing import write

GAP = "  "
WHOLE = 40
"""Cells up to this width are never cut or folded, so that IDs and UUIDs can be copied."""
PADDED = 120
"""In a pipe, a longer cell does not widen its column."""
_MAX_CELL = 2000


def write_aligned(titles: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> None:
    """One record per line, cells whole, columns aligned: for pipes and files."""
    lines = [titles, *rows]
    widths = [min(max(map(len, column)), PADDED) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        write(GAP.join(cells).rstrip() + "\n", out)


def write_drawn(
    titles: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO, *, max_lines: int
) -> None:
    """Columns that fit the terminal if possible: long cells are folded onto up to ``max_lines`` lines."""
    columns = list(zip(titles, *rows, strict=True))
    natural = [max(map(cell_width, column)) for column in columns]
    widths = fitted(natural, shutil.get_terminal_size().columns - len(GAP) * (len(titles) - 1))
    bold, usual = ("\x1b[1m", "\x1b[0m") if _styled() else ("", "")
    head = GAP.join(_padded(title, width) for title, width in zip(titles, widths, strict=True))
    write(f"{bold}{head.rstrip()}{usual}\n", out)
    write(GAP.join("─" * width for width in widths) + "\n", out)
    for row in rows:
        if all(
            len(cell) <= width and cell.isascii() for cell, width in zip(row, widths, strict=True)
        ):
            folded = [list(row)]
        else:
            cells = [fold(cell, width, max_lines) for cell, width in zip(row, widths, strict=True)]
            height = max(map(len, cells))
            folded = [
                [lines[number] if number < len(lines) else "" for lines in cells]
                for number in range(height)
            ]
        for line in folded:
            padded = GAP.join(
                _padded(cell, width) for cell, width in zip(line, widths, strict=True)
            )
            write(padded.rstrip() + "\n", out)


def _styled() -> bool:
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def fitted(natural: Sequence[int], available: int) -> list[int]:
    """The widths of columns: the widest ones are narrowed evenly until the sum fits ``available``, but
    none below :data:`WHOLE`, so the lines may still be too long."""
    limit = max([WHOLE, *natural])
    for limit in sorted({WHOLE, *(width for width in natural if width > WHOLE)}, reverse=True):
        wider = sum(width > limit for width in natural)
        total = sum(min(width, limit) for width in natural)
        if total <= available:
            # The columns that are cut share what is left.
            return [
                min(width, limit + (available - total) // wider if wider else width)
                for width in natural
            ]
    return [min(width, limit) for width in natural]


def char_width(char: str) -> int:
    """How many cells of a terminal a character takes: 0, 1 or 2."""
    if char.isascii():
        return 1
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cell_width(text: str) -> int:
    """How many cells of a terminal a text takes; a very long text is measured to where it is cut."""
    return len(text) if text.isascii() else sum(map(char_width, text[:_MAX_CELL]))


def _padded(cell: str, width: int) -> str:
    return cell.ljust(width) if cell.isascii() else cell + " " * (width - cell_width(cell))


def fold(cell: str, width: int, max_lines: int) -> list[str]:
    """The cell in lines of at most ``width``, broken at spaces if possible; ``…`` ends what is cut."""
    text = cell if len(cell) <= _MAX_CELL else cell[: _MAX_CELL - 1] + "…"
    lines: list[str] = []
    while text:
        end = _fitting(text, width)
        if end == len(text):
            lines.append(text)
            break
        if len(lines) == max_lines - 1:
            lines.append(text[: _fitting(text, width - 1)] + "…")
            break
        space = text.rfind(" ", end // 2, end + 1)
        cut = space if space > 0 else end
        lines.append(text[:cut])
        text = text[cut:].lstrip(" ") if space > 0 else text[cut:]
    return lines or [""]


def _fitting(text: str, width: int) -> int:
    """How many characters from the start fit; at least one."""
    if text.isascii():
        return max(1, min(len(text), width))
    taken = 0
    for number, char in enumerate(text):
        taken += char_width(char)
        if taken > width:
            return max(1, number)
    return len(text)
