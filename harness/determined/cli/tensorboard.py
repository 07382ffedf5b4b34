"""``det tensorboard``"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from determined.cli.errors import talk
from determined.cli.groups import group
from determined.cli.launched import opening, start
from determined.cli.launched.commands import TaskId, add_commands
from determined.cli.launched.nouns import reference
from determined.cli.launched.publishing import Published
from determined.cli.printing import echo
from determined.cli.state import state
from determined.common.wire.kinds import TaskKind

app = group("TensorBoards: the curves of experiments and trials.", default="list")

Experiments = Annotated[
    list[int] | None, typer.Argument(help="IDs of experiments", metavar="EXPERIMENT")
]
_TRIALS = ("-t", "--trial-ids")
Trials = Annotated[
    list[int] | None,
    typer.Option(*_TRIALS, help="IDs of trials, one or several", metavar="TRIAL..."),
]


class _AsDetermined(TyperCommand):
    """Takes ``-t 1 2`` for ``-t 1 -t 2``, as people know it from Determined's client."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(words: Sequence[str]) -> list[str]:
    """Repeat the option for trials before each number behind it."""
    found: list[str] = []
    option, has_one = "", False
    for at, word in enumerate(words):
        if word == "--":
            return [*found, *words[at:]]
        if word in _TRIALS:
            option, has_one = word, False
        elif not word.isdecimal():
            option = ""
        elif option and has_one:
            found.append(option)
        else:
            has_one = True
        found.append(word)
    return found


@app.command("start", cls=_AsDetermined)
def start_tensorboard(
    ctx: typer.Context,
    experiment_ids: Experiments = None,
    trial_ids: Trials = None,
    workspace_name: start.Workspace = None,
    config_file: start.ConfigFile = None,
    context: start.Context = None,
    include: start.Includes = None,
    config: start.Overrides = None,
    no_browser: start.NoBrowser = False,
    detach: start.Detach = False,
    publish: start.Publish = None,
) -> None:
    """Start a TensorBoard on the cluster, and open it in the browser.

    Trials that a running experiment starts later appear in it by themselves. It ends when nobody has looked
    at it for a while (idle_timeout).
    """
    if not experiment_ids and not trial_ids:
        raise typer.BadParameter("name experiments, or trials with -t")
    shared = state(ctx)
    start.refuse_unattended(publish, detach)
    with Published(publish or (), shared) as local:
        given = start.configuration(
            config_file, config, None, kind="TensorboardConfig", ports=local.ports
        )
        of: dict[str, Any] = {"experimentIds": experiment_ids or [], "trialIds": trial_ids or []}
        task = start.send(
            shared, TaskKind.TENSORBOARD, given, context, include, **of, workspace=workspace_name
        )
        if detach:
            echo(task.id)
            return
        talk(f"TensorBoard {task.id}")
        opening.show(task, browser=not no_browser)
        local.start(task.id)
        local.hold(f"TensorBoard {task.id}")


@app.command("open")
def open_tensorboard(
    ctx: typer.Context, task_id: TaskId, no_browser: start.NoBrowser = False
) -> None:
    """Open a TensorBoard in the browser; every user may."""
    opening.show(reference(state(ctx), TaskKind.TENSORBOARD, task_id), browser=not no_browser)


add_commands(app, TaskKind.TENSORBOARD)
