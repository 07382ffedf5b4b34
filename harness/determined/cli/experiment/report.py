"""``det e report``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from determined.cli import completion
from determined.cli.arguments.ids import numbers
from determined.cli.printing import echo
from determined.cli.state import state


def report(
    ctx: typer.Context,
    experiment_ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="experiment IDs and ranges: 3 4 5, or 3-7,9",
            metavar="[ID]",
            autocompletion=completion.experiments,
        ),
    ] = None,
    trials: Annotated[
        list[str] | None,
        typer.Option(help="trials that are shown too: 3,5 or 3-7", metavar="ID,ID"),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(
            help="trials of each experiment [default: of one alone all, of several the best one each]",
            min=1,
            max=200,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="the file to write [default: report_<ID>.html, report.html for several]",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Write an experiment, or trials side by side, as one HTML file that needs no network."""
    experiments = numbers(experiment_ids) if experiment_ids else []
    of_trials = numbers(trials) if trials else []
    if not experiments and not of_trials:
        raise typer.BadParameter("nothing is named: write IDs of experiments, or --trials 3,5")
    alone = len(experiments) == 1 and not of_trials
    path = output or Path(f"report_{experiments[0]}.html" if alone else "report.html")
    echo(state(ctx).client.write_report(path, experiments, of_trials, best=best))


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("report")(report)
