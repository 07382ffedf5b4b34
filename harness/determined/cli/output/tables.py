"""Drawing a table on a terminal, and aligned text in a pipe. Cells have passed ``printing.plain``.

Not rich's tables, which need a second for 1,000 rows.
"""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from determined.cli.printing import write

GAP = "  "
WHOLE = 40
"""Cells up to this width are never cut or folded, so that IDs and UUIDs can be copied."""
PADDED = 120
"""In a pipe, a longer cell does not widen its column."""
_MAX_CELL = 2000
_NARROW, _NARROWEST = 24, 12
"""To what texts are folded at spaces before columns are left out, and when no more of these can be."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+0000")


def write_aligned(titles: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> None:
    """One record per line, cells whole, columns aligned: for pipes and files."""
    lines = [titles, *rows]
    widths = [min(max(map(len, column)), PADDED) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        write(GAP.join(cells).rstrip() + "\n", out)


def write_drawn(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    out: TextIO,
    *,
    max_lines: int,
    spare: Sequence[int] | None = None,
) -> list[str]:
    """Columns that fit the terminal: long cells are folded onto up to ``max_lines`` lines. Returns the titles
    of what is left out and is not empty.

    ``spare``: for each column of a list, how soon it may be left out (0: never); None: nothing may. What does
    not fit then is written as a block for each row, a line for each column.
    """
    available = shutil.get_terminal_size().columns
    found = layout(titles, rows, spare, available)
    bold, usual = ("\x1b[1m", "\x1b[0m") if _styled() else ("", "")
    if found is None:
        _write_blocks(titles, rows, out, available, max_lines)
        return []
    whole = rows
    if found.short:
        rows = [[without_seconds(row[column]) for column in found.columns] for row in rows]
    head = [titles[column] for column in found.columns]
    for line in _folded(head, found.widths, max_lines):
        write(f"{bold}{line}{usual}\n", out)
    write(GAP.join("─" * width for width in found.widths) + "\n", out)
    for row in rows:
        for line in _folded(row, found.widths, max_lines):
            write(line + "\n", out)
    hidden = [column for column in range(len(titles)) if column not in found.columns]
    return [titles[column] for column in hidden if any(row[column] for row in whole)]


def _folded(row: Sequence[str], widths: Sequence[int], max_lines: int) -> Iterator[str]:
    """The lines of one row."""
    if all(len(cell) <= width and cell.isascii() for cell, width in zip(row, widths, strict=True)):
        folded = [list(row)]
    else:
        cells = [fold(cell, width, max_lines) for cell, width in zip(row, widths, strict=True)]
        folded = [
            [lines[number] if number < len(lines) else "" for lines in cells]
            for number in range(max(map(len, cells)))
        ]
    for line in folded:
        yield GAP.join(
            _padded(cell, width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()


def _write_blocks(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    out: TextIO,
    available: int,
    max_lines: int,
) -> None:
    """For each row a line for each of its cells that is not empty."""
    width = max(map(cell_width, titles))
    room = max(available - width - len(GAP), WHOLE)
    for number, row in enumerate(rows):
        if number:
            write("\n", out)
        for title, cell in zip(titles, row, strict=True):
            if cell:
                for line in _folded([title, cell], [width, room], max_lines):
                    write(line + "\n", out)


def _styled() -> bool:
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


@dataclass(frozen=True)
class FittedTable:
    """The numbers of the columns that are shown, and their widths. ``short``: times have no seconds."""

    columns: Sequence[int]
    widths: Sequence[int]
    short: bool = False


def layout(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    spare: Sequence[int] | None,
    available: int,
) -> FittedTable | None:
    """How a table fits ``available`` cells of a terminal; None if it does not, whatever may be left out.

    What fits with cells of up to :data:`WHOLE` whole is left as it is. Else times lose their seconds, texts
    are folded at spaces, and columns are left out: empty ones, then those with the highest ``spare``.
    """
    every = range(len(titles))
    columns = list(zip(titles, *rows, strict=True))
    natural = [max(map(cell_width, column)) for column in columns]
    room = available - len(GAP) * (len(titles) - 1)
    if sum(min(width, WHOLE) for width in natural) <= room:
        return FittedTable(every, fitted(natural, room))
    cells = [[without_seconds(cell) for cell in column[1:]] for column in columns]
    body = [max(map(cell_width, column), default=0) for column in cells]
    head = [_longest_word([title]) for title in titles]
    natural = [max(one, cell_width(title)) for one, title in zip(body, titles, strict=True)]
    order: list[int] = []
    if spare is not None:
        order = [column for column in every if spare[column] or (column and not body[column])]
        order.sort(key=lambda column: (bool(body[column]), -spare[column]))
    tries = [(_NARROW, 0)] if spare is None else [(_NARROW, 0), (_NARROWEST, len(order))]
    for narrow, first in tries:
        least = [
            max(head[column], min(body[column], max(narrow, _longest_word(cells[column]))))
            for column in every
        ]
        for left_out in range(first, len(order) + 1):
            shown = [column for column in every if column not in order[:left_out]]
            room = available - len(GAP) * (len(shown) - 1)
            if sum(least[column] for column in shown) <= room:
                chosen = [natural[column] for column in shown], [least[column] for column in shown]
                return FittedTable(shown, fitted(chosen[0], room, chosen[1]), short=True)
    return None


def _longest_word(texts: Iterable[str]) -> int:
    """The width of the longest word that is not to be broken."""
    words = (cell_width(word) for text in texts for word in text[:_MAX_CELL].split(" "))
    return max((width for width in words if width <= WHOLE), default=1)


def without_seconds(cell: str) -> str:
    """A time in UTC to the minute; any other text as it is."""
    return f"{cell[:16]}Z" if _TIME.fullmatch(cell) else cell


def fitted(natural: Sequence[int], available: int, least: Sequence[int] | None = None) -> list[int]:
    """The widths of columns: the widest ones are narrowed evenly until the sum fits ``available``, but
    none below its ``least`` (:data:`WHOLE` for each), so the lines may still be too long."""
    least = [min(width, WHOLE) for width in natural] if least is None else least

    def narrowed(limit: int) -> list[int]:
        return [min(width, max(one, limit)) for width, one in zip(natural, least, strict=True)]

    low, high = 0, max(natural, default=0)
    while low < high:
        limit = (low + high + 1) // 2
        if sum(narrowed(limit)) <= available:
            low = limit
        else:
            high = limit - 1
    return narrowed(low)


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
    """The cell in lines of at most ``width``, broken at spaces or else behind commas if possible; ``…`` ends
    what is cut."""
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
        if space < 0:
            # A short line rather than a broken word, if the next line has room for that.
            early = text.rfind(" ", 1, end + 1)
            word = text[early + 1 :].partition(" ")[0]
            space = early if early > 0 and cell_width(word) <= width else -1
        cut = space if space > 0 else text.rfind(",", end // 2, end) + 1 or end
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
