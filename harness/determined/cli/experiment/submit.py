"""``det e create``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from determined.cli import _submit, _test_mode
from determined.cli._errors import talk
from determined.cli._options import Includes, Overrides, TestMode
from determined.cli._state import state


def create(
    ctx: typer.Context,
    config_file: Annotated[Path, typer.Argument(help="YAML file", metavar="CONFIG_FILE")],
    model_def: Annotated[
        Path | None, typer.Argument(help="file or directory with the training code")
    ] = None,
    include: Includes = None,
    config: Overrides = None,
    template: Annotated[
        str | None, typer.Option("--template", help="lay this template under the file")
    ] = None,
    project_id: Annotated[
        int | None, typer.Option("--project_id", help="the project to show it in")
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="do not start it yet")] = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow-first-trial", help="follow the first trial's logs")
    ] = False,
    test_mode: TestMode = False,
) -> None:
    """Submit an experiment."""
    if sum([paused, follow, test_mode]) > 1:
        raise typer.BadParameter(
            "--paused, --follow-first-trial and --test-mode exclude each other"
        )
    planned = _submit.plan(
        config_file,
        model_def,
        include,
        config,
        template=template,
        project_id=project_id,
        activate=not paused,
    )
    if test_mode:
        _test_mode.run(planned, state(ctx))
    experiment = _submit.send(planned, state(ctx))
    # A sentence that scripts read the number from.
    typer.echo(f"Created experiment {experiment.id}")
    if follow:
        trial = experiment.await_first_trial()
        talk(f"following trial {trial.id}, Ctrl-C ends that and leaves the experiment alone")
        for line in trial.iter_logs(follow=True):
            typer.echo(line.rstrip("\n"))


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("create")(create)
