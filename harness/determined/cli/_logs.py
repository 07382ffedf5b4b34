"""The log options, which experiments and trials share, and printing logs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import orjson
import typer

Follow = Annotated[
    bool, typer.Option("-f", "--follow", help="go on until the trial has ended, like tail -f")
]
JsonLines = Annotated[bool, typer.Option("--json", help="print a JSON object per line")]
Head = Annotated[int | None, typer.Option("--head", min=1, help="only the first lines")]
Tail = Annotated[int | None, typer.Option("--tail", min=1, help="only the last lines")]
AgentIds = Annotated[list[str] | None, typer.Option("--agent-id", help="only of these agents")]
ContainerIds = Annotated[
    list[str] | None, typer.Option("--container-id", help="only of these containers")
]
RankIds = Annotated[list[int] | None, typer.Option("--rank-id", help="only of these ranks")]
Before = Annotated[
    str | None,
    typer.Option("--timestamp-before", help="only before, e.g. 2026-10-26T23:17:12Z"),
]
After = Annotated[
    str | None, typer.Option("--timestamp-after", help="only after, e.g. 2026-10-26T23:17:12Z")
]
Level = Annotated[
    str | None,
    typer.Option(
        "--level",
        help="this level or higher: TRACE, DEBUG, INFO, WARNING, ERROR, CRITICAL",
        metavar="LEVEL",
    ),
]
Sources = Annotated[list[str] | None, typer.Option("--source", help="only from these sources")]
Stdtypes = Annotated[list[str] | None, typer.Option("--stdtype", help="only stdout or stderr")]


def filters(
    follow: bool,
    head: int | None,
    tail: int | None,
    agent_id: list[str] | None,
    container_id: list[str] | None,
    rank_id: list[int] | None,
    timestamp_before: str | None,
    timestamp_after: str | None,
    level: str | None,
    source: list[str] | None,
    stdtype: list[str] | None,
) -> dict[str, Any]:
    """Arguments for ``_logs.iter_entries`` of the SDK; raises usage errors."""
    from determined.experimental.client import LogLevel

    if head is not None and tail is not None:
        raise typer.BadParameter("--head and --tail exclude each other")
    lowest = None
    if level is not None and level.upper() != "UNSPECIFIED":
        try:
            lowest = LogLevel[level.upper()]
        except KeyError:
            names = ", ".join(known.name for known in LogLevel)
            raise typer.BadParameter(f"--level {level!r}: must be one of {names}") from None
    return {
        "follow": follow,
        "head": head,
        "tail": tail,
        "agent_ids": agent_id,
        "container_ids": container_id,
        "rank_ids": rank_id,
        "timestamp_before": timestamp_before,
        "timestamp_after": timestamp_after,
        "min_level": lowest,
        "sources": source,
        "stdtypes": stdtype,
    }


def show(entries: Iterable[dict[str, Any]], json: bool) -> None:
    """Prints entries as they come."""
    out = sys.stdout
    for entry in entries:
        line = orjson.dumps(entry).decode() if json else entry["message"].rstrip("\n")
        # One write per line, so that whoever reads a pipe has it at once and whole.
        out.write(line + "\n")
        out.flush()
