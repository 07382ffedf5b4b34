"""Lists and descriptions as a table, JSON or CSV: the one way that commands print data."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TextIO

import orjson

from determined.cli import printing
from determined.cli.output import tables
from determined.common.printable import FORMULAS

Record = Mapping[str, Any]


class Documented(Protocol):
    """An object of the SDK."""

    @property
    def document(self) -> Record:
        """The service's JSON."""


LINES_IN_LISTS = 3
LINES_IN_DESCRIPTIONS = 10


class Format(Enum):
    """The format in which data is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True)
class Column:
    """One column: its title, and the cell's value for a record (or the record's key).

    ``spare``: lists leave it out on a terminal that is too narrow, the higher the sooner; 0: never.
    """

    title: str
    source: str | Callable[[Record], Any]
    spare: int = 0

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
    records: Iterable[Record | Documented],
    fmt: Format,
    *,
    document: Any = None,
    file: TextIO | None = None,
    what: str | None = None,
) -> None:
    """Prints a list. The JSON format prints ``document``, or the whole records if there is none.

    ``what`` names the records in the plural: a table is followed by a message with their number, and with
    the number of all if ``records`` is a part of a list (``pages.Listing``).
    """
    listed = [one if isinstance(one, Mapping) else one.document for one in records]
    shown = listed if document is None else document
    if fmt is Format.TABLE:
        _write_table(Section("", columns, listed), file or sys.stdout, LINES_IN_LISTS, is_list=True)
    else:
        show_sections([Section("", columns, listed)], fmt, document=shown, file=file)
    if what is not None and fmt is Format.TABLE:
        printing.talk(_counted(len(listed), getattr(records, "total", None), what))


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
            printing.write("\n", out)
        if fmt is Format.CSV:
            _write_csv(section, out)
        else:
            _write_table(section, out, LINES_IN_DESCRIPTIONS, is_list=len(section.records) > 1)


def show_one(columns: Sequence[Column], document: Record, fmt: Format) -> None:
    """Prints one record: ``document`` as JSON, or its columns."""
    show_sections([Section("", columns, [document])], fmt, document=document)


def print_json(document: Any, file: TextIO | None = None) -> None:
    """Indented JSON; NaN and infinities become null. Control characters are escaped, so the document is
    whole and harmless to a terminal."""
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    printing.write(printing.json_text(text.decode()) + "\n", file)


def print_yaml(document: Any) -> None:
    """YAML, fields in their order; characters that a terminal would obey are escaped."""
    import yaml

    # The session's answers are kinds of dict that YAML does not know.
    plain = orjson.loads(orjson.dumps(document))
    printing.echo(yaml.safe_dump(plain, sort_keys=False).rstrip())


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
    writer = csv.writer(_Safe(out), lineterminator="\n")
    writer.writerow([_unrunnable(column.title) for column in section.columns])
    for record in section.records:
        values = [column.value(record) for column in section.columns]
        writer.writerow(
            [_unrunnable(value) if isinstance(value, str) else _exact(value) for value in values]
        )


def _unrunnable(cell: str) -> str:
    """Text that a spreadsheet shows and does not run: with ``'`` in front of a formula. Numbers stay."""
    if not cell.startswith(FORMULAS):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


class _Safe:
    """A file for :mod:`csv` that shows control characters as text."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, row: str) -> None:
        printing.write(printing.plain(row), self._out)


def _write_table(section: Section, out: TextIO, max_lines: int, *, is_list: bool) -> None:
    """``is_list``: columns may be left out on a narrow terminal; what is described is whole."""
    titles = [column.title for column in section.columns]
    rows = [
        [printing.one_line(text(column.value(record))) for column in section.columns]
        for record in section.records
    ]
    if section.title:
        printing.write(f"{printing.one_line(section.title)}\n", out)
    if printing.is_terminal(out):
        spare = [column.spare for column in section.columns] if is_list else None
        left_out = tables.write_drawn(titles, rows, out, max_lines=max_lines, spare=spare)
        if left_out:
            out.flush()
            printing.talk(
                f"left out for want of width: {', '.join(left_out)}; a wider terminal or a pipe has all"
            )
    else:
        tables.write_aligned(titles, rows, out)


def _counted(count: int, total: int | None, what: str) -> str:
    """``3 trials``, or ``20 of 1001 trials (…)``."""
    if total is None or total <= count:
        return f"{count} {what if count != 1 else what.removesuffix('s')}"
    return f"{count} of {total} {what} (--pages and --offset choose which)"
