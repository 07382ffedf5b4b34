"""``det e create``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from determined.cli.arguments.options import Includes, Overrides, TestMode
from determined.cli.arguments.places import IntoWorkspace, ProjectName
from determined.cli.arguments.places import project_id as place_of
from determined.cli.errors import CliError
from determined.cli.following import pages
from determined.cli.following.first_trial import follow_first_trial
from determined.cli.launched.publishing import Published, with_ports
from determined.cli.launched.start import Publish
from determined.cli.printing import echo, talk
from determined.cli.state import state
from determined.cli.submission import entrypoint, submit
from determined.cli.submission.local_test import train_one_batch_here
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
    workspace_name: IntoWorkspace = None,
    project_name: ProjectName = None,
    paused: Annotated[bool, typer.Option("--paused", help="submit the experiment paused")] = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow-first-trial", help="follow the first trial's logs")
    ] = False,
    test_mode: TestMode = False,
    publish: Publish = None,
    local: Annotated[
        bool,
        typer.Option("--local", help="with --test: train one batch here, and submit nothing"),
    ] = False,
) -> None:
    """Submit an experiment.

    With -f, the exit code is 1 if the experiment (of a search: its first trial) does not end COMPLETED, and
    -p makes ports of that trial ports of this machine meanwhile.
    """
    if sum([paused, follow, test_mode]) > 1:
        raise typer.BadParameter("give only one of --paused, --follow-first-trial and --test-mode")
    if publish and not follow:
        raise CliError(
            "--publish: its ports end with det, so give -f, too; of a trial that runs: python -m"
            " determined.cli.tunnel MASTER TRIAL_ID:PORT --listen PORT"
        )
    if local and (not test_mode or template is not None):
        raise CliError(
            "--local goes with --test, and without --template: it trains one batch of a trial class here,"
            " without a cluster"
        )
    from determined.experimental import _submission

    shared = state(ctx)
    if project_id is not None and (workspace_name or project_name):
        raise typer.BadParameter("give --project_id, or --workspace-name and --project-name")
    if project_id is None:
        project_id = place_of(shared, workspace_name, project_name)
    with Published(publish or (), shared) as ports:
        planned = _submission.plan(
            config_file,
            model_def,
            include or (),
            overrides=config or (),
            change=(lambda data: with_ports(data, ports.ports)) if publish else None,
            template=template,
            project_id=project_id,
            activate=not paused,
        )
        if (wrong := entrypoint.missing(planned, config_file, model_def)) is not None:
            # Scripts of Determined's users submit what never runs, too.
            talk(f"warning: {wrong}")
        if local:
            train_one_batch_here(planned)
            return
        if test_mode:
            train_one_batch(planned, shared)
        experiment = submit.send(planned, shared)
        # Scripts read the number from this sentence.
        echo(f"Created experiment {experiment.id}")
        if follow:
            follow_first_trial(experiment, begun=ports.start if publish else None)
        else:
            pages.say_where(experiment)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("create")(create)
