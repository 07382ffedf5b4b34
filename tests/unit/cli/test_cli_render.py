"""The one renderer: tables, JSON, CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from determined.cli.output import format as f
from determined.cli.output.render import Column, Format, Section, show, show_sections

COLUMNS = [
    Column("ID", "id"),
    Column("Name", "name"),
    Column("Twice", lambda record: record["id"] * 2),
]
RECORDS: list[dict[str, Any]] = [
    {"id": 1, "name": "one", "hidden": [1]},
    {"id": 20, "name": None},
    {"id": 3, "name": 'a "quoted", long\nname'},
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def rendered(fmt: Format, out: io.StringIO | None = None, **kwargs: Any) -> str:
    target = out or io.StringIO()
    show(COLUMNS, RECORDS, fmt, file=target, **kwargs)
    return target.getvalue()


def test_a_pipe_gets_aligned_text_a_record_per_line() -> None:
    assert rendered(Format.TABLE) == (
        "ID  Name                   Twice\n"
        "1   one                    2\n"
        "20                         40\n"
        '3   a "quoted", long name  6\n'
    )


def test_json_has_everything() -> None:
    assert json.loads(rendered(Format.JSON)) == RECORDS
    assert json.loads(rendered(Format.JSON, document={"x": 1})) == {"x": 1}


def test_csv_reads_back() -> None:
    rows = list(csv.reader(io.StringIO(rendered(Format.CSV))))
    assert rows == [
        ["ID", "Name", "Twice"],
        ["1", "one", "2"],
        ["20", "", "40"],
        ["3", 'a "quoted", long\nname', "6"],
    ]


def test_csv_rounds_nothing_and_tables_do() -> None:
    columns = [Column("X", "x")]
    records: list[dict[str, Any]] = [{"x": 0.123456789012}, {"x": {"b": [1, None]}}]
    exact, short = io.StringIO(), io.StringIO()
    show(columns, records, Format.CSV, file=exact)
    show(columns, records, Format.TABLE, file=short)
    assert list(csv.reader(io.StringIO(exact.getvalue())))[1:] == [
        ["0.123456789012"],
        ['{"b":[1,null]}'],
    ]
    assert short.getvalue().splitlines()[1] == "0.123457"


@pytest.mark.parametrize(
    "formula",
    ["=1+1", "+A1", "-cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\uff1d1+1", "=HYPERLINK(0)"],
)
def test_csv_has_nothing_that_a_spreadsheet_runs(formula: str) -> None:
    out = io.StringIO()
    columns = [Column("name", "name"), Column(formula, "name")]
    show(columns, [{"name": formula}], Format.CSV, file=out)
    header, cells = csv.reader(io.StringIO(out.getvalue()))
    assert header[1] == f"'{formula}"
    assert cells == [f"'{formula}"] * 2


@pytest.mark.parametrize("cell", ["-1.5", "+3", "-Infinity", -2, -0.5, "a=1", "", {"=": "-"}])
def test_csv_leaves_numbers_and_other_texts_as_they_are(cell: object) -> None:
    out = io.StringIO()
    show([Column("value", "value")], [{"value": cell}], Format.CSV, file=out)
    _, (found,) = csv.reader(io.StringIO(out.getvalue()))
    assert not found.startswith("'")


def test_a_terminal_gets_a_rich_table_that_takes_nothing_for_markup() -> None:
    out = Terminal()
    show([Column("Name", "name")], [{"name": "[bold]x[/bold] [oops"}], Format.TABLE, file=out)
    assert "[bold]x[/bold] [oops" in out.getvalue()
    assert "─" in out.getvalue() or "━" in out.getvalue()


TIME = "2026-11-27 08:05:53+0000"
RUNS = [
    Column("UUID", "uuid"),
    Column("Name", "name"),
    Column("Labels", "labels"),
    Column("Started", "time", spare=1),
    Column("Pool", "pool", spare=2),
]
UUID = "3b66f26c-887e-43c0-b715-d7b9e491edfd"
RUN = {"uuid": UUID, "name": "a name of some words", "time": TIME, "pool": "default"}


def drawn(width: int, monkeypatch: pytest.MonkeyPatch, *, sections: bool = False) -> list[str]:
    """The lines on a terminal of this width, without the line below the titles."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    if sections:
        show_sections([Section("", RUNS, [RUN])], Format.TABLE, document=None, file=out)
    else:
        show(RUNS, [RUN, RUN], Format.TABLE, file=out)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return [line for line in lines if "─" not in line]


def test_a_list_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drawn(110, monkeypatch)[1] == (f"{UUID}  a name of some words          {TIME}  default")
    # Seconds and empty columns are dropped first, then the least important columns.
    assert drawn(90, monkeypatch)[:2] == [
        "UUID                                  Name                  Started            Pool",
        f"{UUID}  a name of some words  2026-11-27 08:05Z  default",
    ]
    assert capsys.readouterr().err == ""
    assert drawn(80, monkeypatch)[1] == f"{UUID}  a name of some words  2026-11-27 08:05Z"
    said = "left out for want of width: Pool; a wider terminal or a pipe has all\n"
    assert capsys.readouterr().err == said
    assert drawn(52, monkeypatch)[:3] == [
        "UUID                                  Name",
        f"{UUID}  a name of some",
        f"{'':36}  words",
    ]
    assert "Started, Pool" in capsys.readouterr().err


def test_a_list_that_cannot_fit_is_a_line_for_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn(47, monkeypatch)
    assert found[:4] == [
        f"UUID     {UUID}",
        "Name     a name of some words",
        f"Started  {TIME}",
        "Pool     default",
    ]
    assert found[4:] == ["", *found[:4]]


def test_a_description_is_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drawn(80, monkeypatch, sections=True)[3] == "Pool     default"
    assert capsys.readouterr().err == ""


def test_a_pipe_is_whole_at_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = io.StringIO()
    show(RUNS, [RUN], Format.TABLE, file=out)
    assert out.getvalue().splitlines()[1].endswith(f"{TIME}  default")


def test_sections() -> None:
    sections = [Section("First", COLUMNS[:1], RECORDS[:1]), Section("Second", COLUMNS[:1], [])]
    for fmt, expected in [
        (Format.TABLE, "First\nID\n1\n\nSecond\nID\n"),
        (Format.CSV, "ID\n1\n\nID\n"),
    ]:
        out = io.StringIO()
        show_sections(sections, fmt, document=None, file=out)
        assert out.getvalue() == expected


def test_no_records_are_a_header() -> None:
    out = io.StringIO()
    show(COLUMNS, [], Format.TABLE, file=out)
    assert out.getvalue() == "ID  Name  Twice\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.24, "4.2s"), (59.99, "60.0s"), (200, "3m20s"), (7500, "2h05m")]
)
def test_durations(seconds: float, text: str) -> None:
    assert f.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), ("1023", "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (None, "")],
)
def test_sizes(count: int | str | None, text: str) -> None:
    assert f.size(count) == text


def test_times_are_utc_to_the_second() -> None:
    assert f.time("2026-01-02T03:04:05.999+02:00") == "2026-01-02 01:04:05+0000"
    assert f.time(None) == ""


def test_hyperparameters_in_a_line() -> None:
    assert f.pairs({"lr": 0.001234567, "net": {"depth": 3, "act": "relu"}}) == (
        "lr=0.0012346 net.depth=3 net.act=relu"
    )
