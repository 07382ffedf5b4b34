"""`--test-mode`: one tiny trial before the submission, which finds most mistakes within a minute."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from determined.cli.errors import CliError, talk
from determined.cli.output import format as f
from determined.cli.state import State
from determined.cli.submission import submit

if TYPE_CHECKING:
    from determined.experimental import Experiment
    from determined.experimental._submission import ConfigText, Submission

_INTERVAL_S = 0.35


def tiny(config: ConfigText) -> ConfigText:
    """A copy of the configuration for one trial of one batch without restarts.

    If the training code sets the length (no ``searcher.max_length``), the length does not change.
    Raises CliError if the configuration file has no ``searcher``.
    """
    from determined import expconf
    from determined.experimental._submission import ConfigText, as_text

    data = copy.deepcopy(config.document.data)
    searcher = data.get("searcher")
    if not isinstance(searcher, dict):
        raise CliError("--test-mode needs `searcher` in the configuration file itself")
    kept = ("metric", "smaller_is_better", "source_trial_id", "source_checkpoint_uuid")
    single: dict[str, Any] = {"name": "single", **{k: searcher[k] for k in kept if k in searcher}}
    if "max_length" in searcher:
        single["max_length"] = {"batches": 1} if isinstance(searcher["max_length"], dict) else 1
    elif searcher.get("max_time") is not None:
        # Only a search may have max_time alone; a single trial's code may ask for a length.
        counted = searcher.get("time_metric") in ("batches", "epochs", "records")
        single["max_length"] = {"batches": 1} if counted else 1
    data.update(
        name=f"test of {data.get('name') or 'an experiment'}",
        searcher=single,
        max_restarts=0,
    )
    if "entrypoint" not in data or expconf.trial_class(data) is not None:
        # A command decides by itself, and its user would be warned of fields that nobody wrote.
        data.update(
            scheduling_unit=1,
            min_validation_period={"batches": 1},
            min_checkpoint_period={"batches": 0},
        )
    storage = data.get("checkpoint_storage")
    if isinstance(storage, dict):
        storage.update(save_experiment_best=0, save_trial_best=0, save_trial_latest=0)
    return ConfigText(replace(config.document, data=data), as_text(data))


def train_one_batch(
    planned: Submission, shared: State, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Submits the tiny experiment, waits for its end and archives it; ``planned`` is not submitted.

    If the training code sets the length, the trial is canceled after its first validation. Raises
    CliError with the reason if the trial fails. Ctrl-C kills the tiny experiment.
    """
    submission = replace(planned, config=tiny(planned.config), activate=True)
    experiment = submit.send(submission, shared)
    talk(f"test: experiment {experiment.id} trains one trial of one batch first")
    try:
        reason = _outcome(experiment, "max_length" in _searcher(planned), sleep)
    except KeyboardInterrupt:
        experiment.kill()
        talk(f"\nkilled the test, experiment {experiment.id}; nothing else was submitted")
        raise typer.Exit(130) from None
    experiment.archive()
    if reason is not None:
        _show_logs(experiment)
        raise CliError(
            f"the test failed, so nothing else was submitted: {reason}"
            f" (details: det e describe {experiment.id})"
        )
    talk(f"test: passed; experiment {experiment.id} is archived")


def _searcher(submission: Submission) -> dict[str, Any]:
    found: dict[str, Any] = submission.config.document.data["searcher"]
    return found


def _outcome(
    experiment: Experiment, is_bounded: bool, sleep: Callable[[float], None]
) -> str | None:
    """The reason for which the test failed; None if it passed."""
    from determined.common.api.patience import patiently

    enough = False
    while True:
        # The experiment is read first: if it has ended, its trials have ended too.
        patiently(experiment.reload)
        trials = [trial.document for trial in patiently(experiment.list_trials)]
        state = str(experiment.state)
        if state in ("COMPLETED", "CANCELED", "ERROR"):
            break
        if not is_bounded and not enough and any(t.get("latestValidation") for t in trials):
            enough = True
            experiment.cancel()
        sleep(_INTERVAL_S)
    failed = [trial for trial in trials if f.state(trial["state"]) == "ERROR"]
    if failed:
        return failed[0].get("reason") or "no reason was recorded"
    if state == "COMPLETED" or enough:
        return None
    return experiment.document.get("reason") or f"the experiment ended {state}"


def _show_logs(experiment: Experiment) -> None:
    from determined.cli.following import explanation

    for failure in explanation.read(experiment, experiment.list_trials())["failures"]:
        for line in failure["lastLogs"] or ():
            talk(f"  {line}")
