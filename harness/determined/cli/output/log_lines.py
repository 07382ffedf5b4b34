"""The options that choose log lines, declared once for every command, and printing log lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import orjson
import typer

from determined.cli import completion, option_groups, printing

if TYPE_CHECKING:
    from determined.experimental._logs import LogFilters

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


Batches = Iterable[Sequence[dict[str, Any]]]


class ChosenLines(NamedTuple):
    """The log lines that the options choose, and how they are printed."""

    follow: bool
    json: bool
    filters: LogFilters


def _chosen(
    follow: Follow = False,
    json: JsonLines = False,
    head: Head = None,
    tail: Tail = None,
    agent_id: AgentIds = None,
    container_id: ContainerIds = None,
    rank_id: RankIds = None,
    timestamp_before: Before = None,
    timestamp_after: After = None,
    level: Level = None,
    source: Sources = None,
    stdtype: Stdtypes = None,
    allocation_id: AllocationIds = None,
) -> ChosenLines:
    """Raises a usage error for options that exclude each other, and for an unknown level."""
    from determined.experimental._enums import LogLevel

    if head is not None and tail is not None:
        raise typer.BadParameter("give --head or --tail, not both")
    lowest = None
    if level is not None and level.upper() != "UNSPECIFIED":
        try:
            lowest = LogLevel[level.upper()]
        except KeyError:
            names = ", ".join(known.name for known in LogLevel)
            raise typer.BadParameter(f"--level {level!r}: must be one of {names}") from None
    filters: LogFilters = {
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
    return ChosenLines(follow, json, filters)


def options(*, allocations: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options that choose log lines; its parameter ``chosen`` gets what they say.

    ``allocations``: also ``--allocation-id``, for tasks that may have several.
    """
    return option_groups.of(_chosen, "chosen", without=() if allocations else ("allocation_id",))


def show(read: Callable[..., Batches], chosen: ChosenLines) -> None:
    """Prints the chosen entries. ``read``: the SDK's ``iter_log_batches`` of a trial or task."""
    write(read(chosen.follow, **chosen.filters), chosen.json)


def write(batches: Batches, json: bool) -> None:
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
