"""``-f``: the first trial's logs, and the exit code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from determined.cli.errors import CliError, talk
from determined.cli.following import pages
from determined.cli.output import format as f
from determined.cli.output import log_lines
from determined.common.api.patience import patiently

if TYPE_CHECKING:
    from determined.experimental import Experiment

_INTERVAL_S = 0.35


def follow_first_trial(
    experiment: Experiment,
    *,
    begun: Callable[[str], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Shows the first trial's logs to their end, then waits for the experiment if that is its only trial.

    Raises Exit(1), after a line that says why, when the experiment does not end COMPLETED, or the first
    trial of a search does not; CliError when the experiment ends without a trial.
    ``begun`` is called with the id of the trial's task before its logs are read.
    """
    try:
        trial = experiment.await_first_trial()
    except RuntimeError as error:
        raise CliError(str(error)) from error
    talk(f"following trial {trial.id}; Ctrl-C detaches, and the experiment keeps running")
    if begun is not None:
        trial.reload()
        begun(str(trial.task_id))
    log_lines.write(trial.iter_log_batches(follow=True), json=False)
    while True:
        # The experiment is read first: if it has ended, its trial has ended too.
        patiently(experiment.reload, sleep=sleep)
        patiently(trial.reload, sleep=sleep)
        assert experiment.state is not None and trial.state is not None
        is_search = experiment.get_config()["searcher"]["name"] != "single"
        has_ended = experiment.state.terminal
        if has_ended:
            _require_completed(f"experiment {experiment.id}", experiment.document)
        if is_search and trial.state.terminal:
            _require_completed(f"trial {trial.id}", trial.document)
            if not has_ended:
                talk(
                    f"trial {trial.id} is COMPLETED; the search goes on: det e wait {experiment.id}"
                )
            return
        if has_ended:
            if page := pages.in_mlflow(experiment):
                talk(f"look at it in MLflow: {page}")
            pages.say_where(experiment)
            return
        sleep(_INTERVAL_S)


def _require_completed(what: str, document: dict[str, Any]) -> None:
    state = f.state(document["state"])
    if state != "COMPLETED":
        talk(f"{what} ended {state}: {document.get('reason') or 'no reason was recorded'}")
        raise typer.Exit(1)
