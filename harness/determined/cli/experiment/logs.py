"""``det e logs``"""

from __future__ import annotations

import typer

from determined.cli.errors import CliError, talk
from determined.cli.experiment.paths import ExperimentId
from determined.cli.output import log_lines
from determined.cli.state import state


def logs(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    follow: log_lines.Follow = False,
    json: log_lines.JsonLines = False,
    head: log_lines.Head = None,
    tail: log_lines.Tail = None,
    agent_id: log_lines.AgentIds = None,
    container_id: log_lines.ContainerIds = None,
    rank_id: log_lines.RankIds = None,
    timestamp_before: log_lines.Before = None,
    timestamp_after: log_lines.After = None,
    level: log_lines.Level = None,
    source: log_lines.Sources = None,
    stdtype: log_lines.Stdtypes = None,
) -> None:
    """Print the logs of an experiment's first trial; `det trial logs` prints those of any trial."""
    from determined.experimental import _logs as sdk

    filters = log_lines.filters(
        follow,
        head,
        tail,
        agent_id,
        container_id,
        rank_id,
        timestamp_before,
        timestamp_after,
        level,
        source,
        stdtype,
    )
    shared = state(ctx)
    experiment = shared.client.get_experiment(experiment_id)
    if follow:
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
    log_lines.show(sdk.iter_batches(shared.session, trial.id, **filters), json)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("logs")(logs)
