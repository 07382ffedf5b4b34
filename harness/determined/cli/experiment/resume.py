"""``det e continue``"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from determined.cli._errors import talk
from determined.cli._options import Overrides
from determined.cli._state import state
from determined.cli.experiment._path import ExperimentId, reference


def continue_(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    config_file: Annotated[
        Path | None,
        typer.Option("--config-file", help="YAML file laid over the configuration", metavar="FILE"),
    ] = None,
    config: Overrides = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow-first-trial", help="follow the first trial's logs")
    ] = False,
) -> None:
    """Let one that has ended go on: what was canceled or failed runs again from its checkpoint.

    Only the configuration of a single trial can be changed: with searcher.max_length it trains longer.
    """
    from determined import expconf

    data = dict(expconf.read_yaml(config_file).data) if config_file is not None else {}
    data = expconf.apply_overrides(data, config or ())
    # JSON is YAML.
    body = {"id": experiment_id, "overrideConfig": json.dumps(data) if data else ""}
    answer = state(ctx).session.post("/api/v1/experiments/continue", json=body)
    for warning in answer.get("warnings") or ():
        talk(f"warning: {warning}")
    typer.echo(f"Continued experiment {experiment_id}")
    if follow:
        trial = reference(ctx, experiment_id).await_first_trial()
        talk(f"following trial {trial.id}, Ctrl-C ends that and leaves the experiment alone")
        for line in trial.iter_logs(follow=True):
            typer.echo(line.rstrip("\n"))


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("continue")(continue_)
