"""``det e wait``, ``kill``, ``cancel``, ``pause``, ``activate``, ``archive``, ``unarchive``"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from determined.cli.arguments.ids import ExperimentIds, each, numbers
from determined.cli.experiment.paths import reference
from determined.cli.state import state

if TYPE_CHECKING:
    from determined.experimental import Experiment


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
    if quiet:
        return str(reference(ctx, experiment_id).wait(polling_interval or 5.0))
    from determined.cli.following import live
    from determined.cli.following.follow import follow

    session = state(ctx).session
    return follow(session, experiment_id, live.best_view(), interval_s=polling_interval).state


def _act(
    ctx: typer.Context, words: list[str], act: Callable[[Experiment], None], line: str
) -> None:
    def on_one(experiment_id: int) -> str:
        act(reference(ctx, experiment_id))
        return line.format(id=experiment_id)

    each(numbers(words), on_one)


def _end(
    ctx: typer.Context, words: list[str], act: Callable[[Experiment], None], line: str
) -> None:
    """Like :func:`_act`; an experiment that had ended already is left alone, and that is said."""

    def on_one(experiment_id: int) -> str:
        experiment = reference(ctx, experiment_id)
        experiment.reload()
        if experiment.state is not None and experiment.state.terminal:
            return f"experiment {experiment_id} had ended already ({experiment.state}); nothing was done"
        act(experiment)
        return line.format(id=experiment_id)

    each(numbers(words), on_one)


def kill(ctx: typer.Context, experiment_ids: ExperimentIds) -> None:
    """Kill experiments at once."""
    _end(ctx, experiment_ids, lambda experiment: experiment.kill(), "killed experiment {id}")


def cancel(ctx: typer.Context, experiment_ids: ExperimentIds) -> None:
    """End experiments; their trials may save a checkpoint first."""
    line = (
        "asked experiment {id} to end; its trials may save a checkpoint first"
        " (to end it at once: det e kill {id})"
    )
    _end(ctx, experiment_ids, lambda experiment: experiment.cancel(), line)


def pause(ctx: typer.Context, experiment_ids: ExperimentIds) -> None:
    """Pause experiments: their trials save a checkpoint and free their slots."""
    _act(ctx, experiment_ids, lambda experiment: experiment.pause(), "paused experiment {id}")


def activate(ctx: typer.Context, experiment_ids: ExperimentIds) -> None:
    """Let paused experiments continue."""
    _act(ctx, experiment_ids, lambda experiment: experiment.activate(), "activated experiment {id}")


def archive(ctx: typer.Context, experiment_ids: ExperimentIds) -> None:
    """Hide experiments that have ended from lists."""
    _act(ctx, experiment_ids, lambda experiment: experiment.archive(), "archived experiment {id}")


def unarchive(ctx: typer.Context, experiment_ids: ExperimentIds) -> None:
    """Show archived experiments in lists again."""
    line = "unarchived experiment {id}"
    _act(ctx, experiment_ids, lambda experiment: experiment.unarchive(), line)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("wait")(wait)
    app.command("kill")(kill)
    app.command("cancel")(cancel)
    app.command("pause")(pause)
    app.command("activate|unpause")(activate)
    app.command("archive")(archive)
    app.command("unarchive")(unarchive)
