"""``det e create``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from determined.cli.arguments.options import Includes, Overrides, TestMode
from determined.cli.following.first_trial import follow_first_trial
from determined.cli.printing import echo
from determined.cli.state import state
from determined.cli.submission import submit
from determined.cli.submission.test_mode import train_one_batch


def create(
    ctx: typer.Context,
    config_file: Annotated[Path, typer.Argument(help="YAML file", metavar="CONFIG_FILE")],
    model_def: Annotated[
        Path | None, typer.Argument(help="file or directory with the training code")
    ] = None,
    include: Includes = None,
    config: Overrides = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--template", help="take fields that the file does not set from this template"
        ),
    ] = None,
    project_id: Annotated[
        int | None, typer.Option("--project_id", help="ID of the experiment's project")
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="submit the experiment paused")] = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow-first-trial", help="follow the first trial's logs")
    ] = False,
    test_mode: TestMode = False,
) -> None:
    """Submit an experiment.

    With -f, the exit code is 1 if the experiment (of a search: its first trial) does not end COMPLETED.
    """
    if sum([paused, follow, test_mode]) > 1:
        raise typer.BadParameter("give only one of --paused, --follow-first-trial and --test-mode")
    planned = submit.plan(
        config_file,
        model_def,
        include,
        config,
        template=template,
        project_id=project_id,
        activate=not paused,
    )
    if test_mode:
        train_one_batch(planned, state(ctx))
    experiment = submit.send(planned, state(ctx))
    # Scripts read the number from this sentence.
    echo(f"Created experiment {experiment.id}")
    if follow:
        follow_first_trial(state(ctx), experiment)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("create")(create)
