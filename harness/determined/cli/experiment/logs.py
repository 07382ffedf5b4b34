"""``det e logs``"""

from __future__ import annotations

import typer

from determined.cli.errors import CliError, talk
from determined.cli.experiment.paths import ExperimentId
from determined.cli.output import log_lines
from determined.cli.state import state


@log_lines.options()
def logs(ctx: typer.Context, experiment_id: ExperimentId, chosen: log_lines.ChosenLines) -> None:
    """Print the logs of an experiment's first trial; `det trial logs` prints those of any trial."""
    experiment = state(ctx).experiments.get_experiment(experiment_id)
    if chosen.follow:
        try:
            trial = experiment.await_first_trial()
        except RuntimeError as error:
            raise CliError(str(error)) from error
    else:
        first = next(experiment.iter_trials(limit=2), None)
        if first is None:
            raise CliError(
                f"experiment {experiment_id} has no trial yet; -f waits for its first trial"
            )
        trial = first
    talk(f"logs of trial {trial.id}, the first of experiment {experiment_id}")
    log_lines.show(trial.iter_log_batches, chosen)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("logs")(logs)
