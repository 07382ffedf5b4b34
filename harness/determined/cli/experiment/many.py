"""One action on many experiments: by ids and ranges, by ``--all`` or by ``--label``.

Whatever is not named one by one is shown first, and asked for. Then exactly those that were shown are acted
on: one that is submitted meanwhile is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli import completion
from determined.cli.arguments.confirmation import confirm
from determined.cli.arguments.ids import has_range, numbers
from determined.cli.errors import CliError, talk
from determined.cli.experiment.paths import PATH
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column, Format, Record
from determined.cli.state import state
from determined.common.printable import counted

if TYPE_CHECKING:
    from determined.common.api import Session

AT_ONCE = 50
"""Experiments of one request."""
SHOWN = 20

RUNNABLE = ("ACTIVE", "PAUSED")
STOPPING = ("STOPPING_COMPLETED", "STOPPING_CANCELED", "STOPPING_ERROR", "STOPPING_KILLED")
ENDED = ("COMPLETED", "CANCELED", "ERROR")
_GONE = ("DELETED", "DELETING", "DELETE_FAILED")

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        help="experiment IDs and ranges: 3 4 5, or 3-7,9",
        metavar="ID",
        autocompletion=completion.experiments,
    ),
]
All = Annotated[bool, typer.Option("--all", help="all of yours that it can be done to")]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label", help="all of yours with this label; given twice: with both", metavar="LABEL"
    ),
]

COLUMNS = (
    Column("ID", "id"),
    Column("Owner", "username"),
    Column("Name", "name"),
    Column("State", f.field("state", f.state)),
    Column("Started", f.field("startTime", f.time)),
    Column("Labels", lambda record: ", ".join(record.get("labels") or ())),
)


@dataclass(frozen=True)
class Verb:
    """What is done. ``name``: in the address, and in the question; ``done``: the line for each experiment;
    ``states``: of those that ``--all`` and ``--label`` choose; ``archived``: of those, where it matters."""

    name: str
    done: str
    states: Sequence[str]
    archived: bool | None = None

    @property
    def ends(self) -> bool:
        """Whether what has ended already is left alone."""
        return STOPPING[0] in self.states


def act(
    ctx: typer.Context,
    action: Verb,
    words: Sequence[str] | None,
    all_: bool,
    labels: Sequence[str] | None,
    yes: bool,
) -> None:
    """Does it to each that is chosen, and prints a line for each. Raises Exit(1) if any was refused."""
    if bool(words) == bool(all_ or labels):
        raise typer.BadParameter("say which: IDs, or --all, or --label")
    ids = numbers(words) if words else []
    session = state(ctx).session
    if words:
        found = {record["id"]: record for record in _named(session, ids)}
        to_ask = has_range(words)
        if to_ask:
            ids = _there(ids, found)
    else:
        found = {record["id"]: record for record in _matching(session, action, labels)}
        ids, to_ask = list(found), True
        if not ids:
            with_ = f" with {_labels(labels)}" if labels else ""
            talk(
                f"there is nothing to {action.name}: no experiment of yours{with_} is in such a state"
            )
            return
    if to_ask and not yes:
        _ask(action, [found[one] for one in ids])
    _do(session, action, ids, found)


def _there(ids: Sequence[int], found: Collection[int]) -> list[int]:
    """Those of a range. Says how many there are not; raises CliError when there is none."""
    there = [one for one in ids if one in found]
    if not there:
        raise CliError("no experiment has one of these IDs")
    if len(there) < len(ids):
        talk(f"{len(ids) - len(there)} of these {len(ids)} IDs have no experiment")
    return there


def _labels(labels: Sequence[str]) -> str:
    return f"label {labels[0]}" if len(labels) == 1 else f"labels {', '.join(labels)}"


def _ask(action: Verb, records: Sequence[Record]) -> None:
    render.show(COLUMNS, records[:SHOWN], Format.TABLE, file=sys.stderr)
    if len(records) > SHOWN:
        talk(f"and {len(records) - SHOWN} more")
    confirm(f"{action.name.capitalize()} {counted(len(records), 'experiment')}?", yes=False)


def _matching(
    session: Session, action: Verb, labels: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    from determined.common.api import authentication, pages

    asked = {
        "users": [authentication.current_user(session)["username"]],
        "states": [f"STATE_{one}" for one in action.states],
        "labels": list(labels) if labels else None,
        "archived": action.archived,
    }
    return pages.read(session, PATH, "experiments", asked)


def _named(session: Session, ids: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Those of the ids that there are."""
    from determined.common.api import pages

    for some in _parts(ids):
        yield from pages.read(session, PATH, "experiments", {"experimentIdFilter.incl": some})


def _parts(ids: Sequence[int]) -> Iterator[list[int]]:
    for begin in range(0, len(ids), AT_ONCE):
        yield list(ids[begin : begin + AT_ONCE])


def _do(
    session: Session, action: Verb, ids: Sequence[int], found: dict[int, dict[str, Any]]
) -> None:
    refused = 0
    for some in _parts(ids):
        over = {one: how for one in some if action.ends and (how := _ended(found.get(one)))}
        going = [one for one in some if one not in over]
        body = {"experimentIds": going}
        answer = session.post(f"{PATH}/{action.name}", json=body)["results"] if going else []
        errors = {result["id"]: result["error"] for result in answer}
        for one in some:
            if one in over:
                talk(f"experiment {one} had ended already ({over[one]}); nothing was done")
            elif errors.get(one):
                refused += 1
                talk(f"error: {errors[one]}")
            else:
                talk(action.done.format(id=one))
    if refused:
        if len(ids) > 1:
            talk(f"{refused} of {len(ids)} failed")
        raise typer.Exit(1)


def _ended(record: Record | None) -> str | None:
    """How it ended, if it has."""
    found = f.state(record["state"]) if record is not None else ""
    return found if found in (*ENDED, *_GONE) else None
