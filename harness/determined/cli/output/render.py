"""Lists and descriptions as a table, JSON or CSV: the one way that commands print data."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

import orjson

Record = Mapping[str, Any]


class Format(Enum):
    """How data is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True)
class Column:
    """One column: its title, and the cell's value for a record (or the record's key)."""

    title: str
    source: str | Callable[[Record], Any]

    def value(self, record: Record) -> Any:
        """The cell's value; None is printed as an empty cell."""
        return record.get(self.source) if isinstance(self.source, str) else self.source(record)


@dataclass(frozen=True)
class Section:
    """A table with a title; a description has several."""

    title: str
    columns: Sequence[Column]
    records: Sequence[Record]


def show(
    columns: Sequence[Column],
    records: Iterable[Record],
    fmt: Format,
    *,
    document: Any = None,
    file: TextIO | None = None,
) -> None:
    """Prints a list. The JSON format prints ``document``, or the whole records if there is none."""
    listed = list(records)
    shown = listed if document is None else document
    show_sections([Section("", columns, listed)], fmt, document=shown, file=file)


def show_sections(
    sections: Sequence[Section],
    fmt: Format,
    *,
    document: Any,
    file: TextIO | None = None,
) -> None:
    """Prints a description: ``document`` as JSON, or the sections one below the other."""
    out = sys.stdout if file is None else file
    if fmt is Format.JSON:
        print_json(document, out)
        return
    for number, section in enumerate(sections):
        if number:
            out.write("\n")
        if fmt is Format.CSV:
            _write_csv(section, out)
        else:
            _write_table(section, out)


def print_json(document: Any, file: TextIO | None = None) -> None:
    """Indented JSON; NaN and infinities become null."""
    out = sys.stdout if file is None else file
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    out.write(text.decode() + "\n")


def save_csv(section: Section, path: Path) -> None:
    """Writes one section to a file."""
    with path.open("w", newline="") as file:
        _write_csv(section, file)


def text(value: Any) -> str:
    """A cell's text in a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return _exact(value)


def _exact(value: Any) -> str:
    """A cell's text in CSV; numbers are not rounded."""
    if value is None:
        return ""
    if isinstance(value, dict | list):
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    if isinstance(value, Enum):
        return str(value)
    return str(value)


def _write_csv(section: Section, out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.title for column in section.columns])
    for record in section.records:
        writer.writerow([_exact(column.value(record)) for column in section.columns])


def _write_table(section: Section, out: TextIO) -> None:
    titles = [column.title for column in section.columns]
    rows = [
        [text(column.value(record)) for column in section.columns] for record in section.records
    ]
    if out.isatty():
        _write_rich(section.title, titles, rows, out)
        return
    if section.title:
        out.write(f"{section.title}\n")
    lines = [titles, *[[_one_line(cell) for cell in row] for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        out.write("  ".join(cells).rstrip() + "\n")


def _write_rich(title: str, titles: list[str], rows: list[list[str]], out: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in titles:
        table.add_column(name, overflow="fold")
    for row in rows:
        # Text, not str: rich would read markup in a name.
        table.add_row(*[Text(cell) for cell in row])
    Console(file=out).print(table)


def _one_line(cell: str) -> str:
    """The cell without line breaks, so that each record stays on one line."""
    return " ".join(cell.split("\n"))
