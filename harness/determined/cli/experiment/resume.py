"""``det e continue``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from determined.cli.arguments.options import Overrides
from determined.cli.errors import talk
from determined.cli.experiment.paths import ExperimentId, reference
from determined.cli.following.first_trial import follow_first_trial
from determined.cli.printing import echo


def continue_(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config-file", help="YAML file merged into the configuration", metavar="FILE"
        ),
    ] = None,
    config: Overrides = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow-first-trial", help="follow the first trial's logs")
    ] = False,
) -> None:
    """Continue an experiment that has ended: canceled and failed trials go on from their checkpoints.

    The configuration can be changed only if the searcher is `single`; a larger searcher.max_length
    trains the trial longer.
    """
    from determined import expconf

    data = dict(expconf.read_yaml(config_file).data) if config_file is not None else {}
    data = expconf.apply_overrides(data, config or ())
    experiment = reference(ctx, experiment_id)
    for warning in experiment.continue_(data):
        talk(f"warning: {warning}")
    echo(f"Continued experiment {experiment_id}")
    if follow:
        follow_first_trial(experiment)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("continue")(continue_)
