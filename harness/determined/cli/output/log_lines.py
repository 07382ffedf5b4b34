"""The options that choose log lines, and printing log lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import orjson
import typer

from determined.cli import completion, printing

Follow = Annotated[
    bool, typer.Option("-f", "--follow", help="keep printing until the trial ends, like tail -f")
]
JsonLines = Annotated[bool, typer.Option("--json", help="print a JSON object per line")]
Head = Annotated[
    int | None, typer.Option("--head", min=1, help="print only this many lines from the start")
]
Tail = Annotated[
    int | None, typer.Option("--tail", min=1, help="print only this many lines from the end")
]
AgentIds = Annotated[
    list[str] | None,
    typer.Option(
        "--agent-id",
        help="only lines of this agent; may be repeated",
        autocompletion=completion.agents,
    ),
]
AllocationIds = Annotated[
    list[str] | None,
    typer.Option("--allocation-id", help="only lines of this allocation; may be repeated"),
]
ContainerIds = Annotated[
    list[str] | None,
    typer.Option("--container-id", help="only lines of this container; may be repeated"),
]
RankIds = Annotated[
    list[int] | None, typer.Option("--rank-id", help="only lines of this rank; may be repeated")
]
Before = Annotated[
    str | None,
    typer.Option(
        "--timestamp-before", help="only lines before this time, e.g. 2026-10-26T23:17:12Z"
    ),
]
After = Annotated[
    str | None,
    typer.Option("--timestamp-after", help="only lines after this time, e.g. 2026-10-26T23:17:12Z"),
]
Level = Annotated[
    str | None,
    typer.Option(
        "--level",
        help="only lines of this level or higher: TRACE, DEBUG, INFO, WARNING, ERROR, CRITICAL",
        metavar="LEVEL",
    ),
]
Sources = Annotated[
    list[str] | None, typer.Option("--source", help="only lines from this source; may be repeated")
]
Stdtypes = Annotated[
    list[str] | None, typer.Option("--stdtype", help="only lines of stdout or of stderr")
]


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
    allocation_id: list[str] | None = None,
) -> dict[str, Any]:
    """The arguments for the SDK's ``_logs.iter_batches``. Raises a usage error for invalid options."""
    from determined.experimental.client import LogLevel

    if head is not None and tail is not None:
        raise typer.BadParameter("give --head or --tail, not both")
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
        "allocation_ids": allocation_id,
    }


def show(batches: Iterable[Sequence[dict[str, Any]]], json: bool) -> None:
    """Prints log entries as they arrive, each time those that arrived together.

    Colours stay, on a terminal and in a pipe; other control characters are shown as text. The entries as
    JSON are whole.
    """
    for entries in batches:
        if json:
            text = printing.json_text(b"\n".join(map(orjson.dumps, entries)).decode())
            printing.write(f"{text}\n")
        else:
            lines = [printing.log_text(entry["message"].rstrip("\r\n")) for entry in entries]
            printing.write("\n".join(lines) + "\n")
        # The reader of a pipe gets the lines at once.
        sys.stdout.flush()
