"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from determined.cli.output.render import Format

Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Yaml = Annotated[bool, typer.Option("--yaml", help="print YAML")]
Csv = Annotated[bool, typer.Option("--csv", help="print CSV")]
Limit = Annotated[
    int,
    typer.Option(
        "--limit",
        min=1,
        metavar="NUMBER",
        help="items per page, as in Determined: all pages are fetched, unless --pages 1 is given",
    ),
]
Offset = Annotated[int, typer.Option("--offset", min=0, metavar="NUMBER", help="items to skip")]
Includes = Annotated[
    list[Path] | None,
    typer.Option(
        "-i", "--include", help="another file or directory to send; may be repeated", metavar="PATH"
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        help="set one field, e.g. searcher.max_trials=8; may be repeated",
        metavar="A.B=VALUE",
    ),
]
TestMode = Annotated[
    bool,
    typer.Option(
        "-t",
        "--test-mode",
        "--test",
        help="train one trial of one batch first; submit only if that works",
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="print only the paths")]
OutputDir = Annotated[
    Path | None, typer.Option("-o", "--output-dir", help="the directory to write to", metavar="DIR")
]


class Order(StrEnum):
    """The direction of a list."""

    ASC = "asc"
    DESC = "desc"


class Pages(StrEnum):
    """The part of a list to fetch."""

    ONE = "1"
    ALL = "all"


PagesOption = Annotated[
    Pages, typer.Option("--pages", help="fetch one page of --limit items, or all of them")
]


def chosen(json: bool, csv: bool) -> Format:
    """The output format. Raises a usage error for two formats."""
    if json and csv:
        raise typer.BadParameter("give --json or --csv, not both")
    return Format.JSON if json else Format.CSV if csv else Format.TABLE


def bound(pages: Pages, limit: int) -> int | None:
    """The number of items to fetch in total; None for all items."""
    return limit if pages is Pages.ONE else None
