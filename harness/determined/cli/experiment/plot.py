"""``det e plot``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from determined.cli.errors import talk
from determined.cli.experiment.paths import ExperimentId, reference
from determined.cli.printing import echo


def plot(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="the file to write [default: experiment_<ID>.html]",
            metavar="FILE",
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="open the page in a browser")] = False,
) -> None:
    """Write an HTML page with learning curves, the best metric, hyperparameters and rungs."""
    path = Path(reference(ctx, experiment_id).plot(output))
    echo(str(path))
    if open_:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            talk("found no browser to open the page in")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("plot")(plot)
