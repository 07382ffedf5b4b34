"""``det e wait``, ``kill``, ``cancel``, ``pause``, ``activate``, ``archive``, ``unarchive``"""

from __future__ import annotations

from typing import Annotated

import typer

from determined.cli._errors import talk
from determined.cli._state import state
from determined.cli.experiment._path import ExperimentId, reference


def wait(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    polling_interval: Annotated[
        float | None,
        typer.Option("--polling-interval", min=0.1, help="seconds between questions [default: 5]"),
    ] = None,
) -> None:
    """Wait for the end, watching it on a terminal; exit code 0 for COMPLETED, else 1."""
    from determined.cli import _live

    if _live.watched():
        from determined.cli._follow import follow

        session = state(ctx).session
        ended = follow(session, experiment_id, _live.best_view(), interval_s=polling_interval).state
    else:
        ended = str(reference(ctx, experiment_id).wait(polling_interval or 5.0))
    talk(f"experiment {experiment_id}: {ended}")
    if ended != "COMPLETED":
        raise typer.Exit(1)


def kill(ctx: typer.Context, experiment_id: ExperimentId) -> None:
    """End it at once."""
    reference(ctx, experiment_id).kill()
    talk(f"killed experiment {experiment_id}")


def cancel(ctx: typer.Context, experiment_id: ExperimentId) -> None:
    """End it; its trials save a checkpoint first."""
    reference(ctx, experiment_id).cancel()
    talk(
        f"asked experiment {experiment_id} to end; its trials may save a checkpoint first"
        f" (at once: det e kill {experiment_id})"
    )


def pause(ctx: typer.Context, experiment_id: ExperimentId) -> None:
    """Have its trials save a checkpoint and give up their slots."""
    reference(ctx, experiment_id).pause()
    talk(f"paused experiment {experiment_id}")


def activate(ctx: typer.Context, experiment_id: ExperimentId) -> None:
    """Let a paused one go on."""
    reference(ctx, experiment_id).activate()
    talk(f"activated experiment {experiment_id}")


def archive(ctx: typer.Context, experiment_id: ExperimentId) -> None:
    """Hide one that has ended from lists."""
    reference(ctx, experiment_id).archive()
    talk(f"archived experiment {experiment_id}")


def unarchive(ctx: typer.Context, experiment_id: ExperimentId) -> None:
    """Show it in lists again."""
    reference(ctx, experiment_id).unarchive()
    talk(f"unarchived experiment {experiment_id}")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("wait")(wait)
    app.command("kill")(kill)
    app.command("cancel")(cancel)
    app.command("pause")(pause)
    app.command("activate|unpause")(activate)
    app.command("archive")(archive)
    app.command("unarchive")(unarchive)
