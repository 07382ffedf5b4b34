"""``det e logs``"""

from __future__ import annotations

import typer

from determined.cli import _logs
from determined.cli._errors import CliError, talk
from determined.cli._state import state
from determined.cli.experiment._path import ExperimentId


def logs(
    ctx: typer.Context,
    experiment_id: ExperimentId,
    follow: _logs.Follow = False,
    json: _logs.JsonLines = False,
    head: _logs.Head = None,
    tail: _logs.Tail = None,
    agent_id: _logs.AgentIds = None,
    container_id: _logs.ContainerIds = None,
    rank_id: _logs.RankIds = None,
    timestamp_before: _logs.Before = None,
    timestamp_after: _logs.After = None,
    level: _logs.Level = None,
    source: _logs.Sources = None,
    stdtype: _logs.Stdtypes = None,
) -> None:
    """Logs of an experiment's first trial; `det trial logs` shows any."""
    from determined.experimental import _logs as sdk

    filters = _logs.filters(
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
            raise CliError(f"experiment {experiment_id} has no trial yet; -f waits for it")
        trial = first
    talk(f"logs of trial {trial.id}, the first of experiment {experiment_id}")
    _logs.show(sdk.iter_entries(shared.session, trial.id, **filters), json)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("logs")(logs)
