"""One action on many experiments: by ids and ranges, by ``--all`` or by ``--label``.

Whatever is not named one by one is shown first, and asked for. Then exactly those that were shown are acted
on: one that is submitted meanwhile is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from determined.cli import completion
from determined.cli.arguments.confirmation import confirm
from determined.cli.arguments.ids import has_range, numbers
from determined.cli.errors import CliError, talk
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column, Format
from determined.cli.state import State, state
from determined.common.printable import counted

if TYPE_CHECKING:
    from determined.experimental import Experiment
    from determined.experimental._experiment_verbs import ExperimentVerbs

AT_ONCE = 50
"""Experiments that are acted on before their lines are printed."""
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
    """The action. ``name``: the SDK's, and in the question; ``done``: the line for each experiment;
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
    shared = state(ctx)
    if words:
        found = {one.id: one for one in shared.experiments.find_experiments(ids)}
        to_ask = has_range(words)
        if to_ask:
            ids = _there(ids, found)
    else:
        found = {one.id: one for one in _matching(shared, action, labels)}
        ids, to_ask = list(found), True
        if not ids:
            with_ = f" with {_labels(labels)}" if labels else ""
            talk(
                f"there is nothing to {action.name}: no experiment of yours{with_} is in such a state"
            )
            return
    if to_ask and not yes:
        _ask(action, [found[one] for one in ids])
    _do(shared.experiments, action, ids, found)


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


def _ask(action: Verb, chosen: Sequence[Experiment]) -> None:
    render.show(COLUMNS, chosen[:SHOWN], Format.TABLE, file=sys.stderr)
    if len(chosen) > SHOWN:
        talk(f"and {len(chosen) - SHOWN} more")
    confirm(f"{action.name.capitalize()} {counted(len(chosen), 'experiment')}?", yes=False)


def _matching(shared: State, action: Verb, labels: Sequence[str] | None) -> Iterator[Experiment]:
    from determined.experimental._enums import ExperimentState

    return shared.experiments.iter_experiments(
        users=[shared.username],
        states=[ExperimentState[one] for one in action.states],
        labels=list(labels) if labels else None,
        archived=action.archived,
    )


def _parts(ids: Sequence[int]) -> Iterator[list[int]]:
    for begin in range(0, len(ids), AT_ONCE):
        yield list(ids[begin : begin + AT_ONCE])


def _do(
    experiments: ExperimentVerbs, action: Verb, ids: Sequence[int], found: Mapping[int, Experiment]
) -> None:
    refused = 0
    for some in _parts(ids):
        over = {one: how for one in some if action.ends and (how := _ended(found.get(one)))}
        going = [one for one in some if one not in over]
        errors = experiments.change_experiments(action.name, going)
        for one in some:
            if one in over:
                talk(f"experiment {one} had ended already ({over[one]}); nothing was done")
            elif one in errors:
                refused += 1
                talk(f"error: {errors[one]}")
            else:
                talk(action.done.format(id=one))
    if refused:
        if len(ids) > 1:
            talk(f"{refused} of {len(ids)} failed")
        raise typer.Exit(1)


def _ended(experiment: Experiment | None) -> str | None:
    """The state in which it ended, if it has ended."""
    found = str(experiment.state) if experiment is not None else ""
    return found if found in (*ENDED, *_GONE) else None
