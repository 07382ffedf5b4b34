"""``det e wait``, ``kill``, ``cancel``, ``pause``, ``activate``, ``archive``, ``unarchive``"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from determined.cli.arguments.confirmation import Yes
from determined.cli.arguments.ids import ExperimentIds, each, numbers
from determined.cli.experiment import many
from determined.cli.experiment.paths import reference


def wait(
    ctx: typer.Context,
    experiment_ids: ExperimentIds,
    polling_interval: Annotated[
        float | None,
        typer.Option("--polling-interval", min=0.1, help="seconds between polls"),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="print nothing but how each experiment ended")
    ] = False,
) -> None:
    """Wait until experiments end; exit code 0 if all of them are COMPLETED, else 1.

    On a terminal, the live view of `det flow run` is shown; elsewhere failures and a line a minute.
    """
    ended = []

    def wait_for(experiment_id: int) -> str:
        ended.append(_end_of(ctx, experiment_id, polling_interval, quiet))
        return f"experiment {experiment_id}: {ended[-1]}"

    each(numbers(experiment_ids), wait_for)
    if any(how != "COMPLETED" for how in ended):
        raise typer.Exit(1)


def _end_of(
    ctx: typer.Context, experiment_id: int, polling_interval: float | None, quiet: bool
) -> str:
    experiment = reference(ctx, experiment_id)
    if quiet:
        return str(experiment.wait(polling_interval or 5.0))
    from determined.cli.following import live
    from determined.cli.following.follow import follow

    return follow(experiment, live.best_view(), interval_s=polling_interval).state


def _command(action: many.Verb, help_: str) -> Callable[..., None]:
    def command(
        ctx: typer.Context,
        experiment_ids: many.Ids = None,
        all_: many.All = False,
        labels: many.Labels = None,
        yes: Yes = False,
    ) -> None:
        many.act(ctx, action, experiment_ids, all_, labels, yes)

    command.__doc__ = help_
    return command


_OPEN = (*many.RUNNABLE, *many.STOPPING)
_SAVING = (
    "asked experiment {id} to end; its trials may save a checkpoint first"
    " (to end it at once: det e kill {id})"
)
KILL = many.Verb("kill", "killed experiment {id}", _OPEN)
CANCEL = many.Verb("cancel", _SAVING, _OPEN)
PAUSE = many.Verb("pause", "paused experiment {id}", ("ACTIVE",))
ACTIVATE = many.Verb("activate", "activated experiment {id}", ("PAUSED",))
ARCHIVE = many.Verb("archive", "archived experiment {id}", many.ENDED, archived=False)
UNARCHIVE = many.Verb("unarchive", "unarchived experiment {id}", many.ENDED, archived=True)

COMMANDS = {
    "kill": (KILL, "Kill experiments at once."),
    "cancel": (CANCEL, "End experiments; their trials may save a checkpoint first."),
    "pause": (PAUSE, "Pause experiments: their trials save a checkpoint and free their slots."),
    "activate|unpause": (ACTIVATE, "Let paused experiments continue."),
    "archive": (ARCHIVE, "Hide experiments that have ended from lists."),
    "unarchive": (UNARCHIVE, "Show archived experiments in lists again."),
}


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("wait")(wait)
    for name, (action, help_) in COMMANDS.items():
        app.command(name)(_command(action, help_))
