"""Following an experiment until it ends, and reporting its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from determined.cli.errors import talk
from determined.cli.following.last_words import ASKED, last_words
from determined.cli.following.live import View
from determined.cli.following.tracker import Tracker
from determined.cli.output import format as f
from determined.common.api import errors
from determined.common.api.patience import patiently
from determined.common.printable import counted

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.experimental import Checkpoint, Experiment

# A short search is polled often, because the user waits for its end; a long one less often.
_INTERVAL_S, _LATER_S, _AFTER_S = 0.35, 1.0, 60.0
# A poll of thousands of trials is slow, so the pause between polls is at least twice a poll's time.
_PAUSES = 2.0


def look(experiment: Experiment, tracker: Tracker) -> list[str]:
    """Polls the service once; returns a line for each change."""
    # The experiment is read first: if it has ended, its trials have ended too.
    experiment.reload()
    trials = experiment.iter_trials(offset=tracker.offset)
    return tracker.update(experiment.document, (trial.document for trial in trials))


def follow(
    experiment: Experiment,
    view: View,
    *,
    interval_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Tracker:
    """Shows the experiment until it ends; returns the tracker with its final state.

    While the service does not answer, this waits for it. ``interval_s`` is the pause between two
    polls; the default is short at first and longer later.
    """
    tracker = Tracker()
    start = time.monotonic()
    with view:
        while True:
            asked = time.monotonic()
            events = patiently(lambda: look(experiment, tracker), on_wait=_say_away, sleep=sleep)
            view.show(tracker, events)
            if tracker.ended:
                break
            now = time.monotonic()
            usual = interval_s or (_INTERVAL_S if now - start < _AFTER_S else _LATER_S)
            sleep(max(usual, (now - asked) * _PAUSES))
    tracker.refresh_best()
    return tracker


def _say_away(error: errors.MasterNotFoundException) -> None:
    talk(f"{error.message}; the experiment keeps running; waiting for the service to answer again")


def best_checkpoint(experiment: Experiment) -> Checkpoint | None:
    """The best step that has a checkpoint, of any trial; None if no checkpoint is there.

    The best trial is that of the best validation. Where that step has no checkpoint, the best checkpoint may
    be another trial's.
    """
    from determined.errors import CheckpointNotFound

    try:
        return patiently(experiment.top_checkpoint, on_wait=_say_away)
    except CheckpointNotFound:
        return None


def result(tracker: Tracker, top: Checkpoint | None = None) -> dict[str, Any]:
    """The experiment's result as one JSON document; ``top``: its best checkpoint."""
    best = tracker.best
    return {
        "experiment": {
            "id": tracker.experiment["id"],
            "name": tracker.experiment.get("name"),
            "state": tracker.state,
            "reason": tracker.experiment.get("reason"),
            "trials": dict(tracker.counts()),
        },
        "metric": tracker.metric,
        "best": None
        if best is None
        else {
            "trial": best["id"],
            "metric": tracker.metric,
            "value": best["searcherMetricValue"],
            "steps": (best.get("bestValidation") or {}).get("totalBatches"),
            "hparams": best.get("hparams"),
            **_checkpoint(best),
        },
        "best_checkpoint": None if top is None else _of_experiment(top, tracker.metric),
    }


def _checkpoint(trial: Any) -> dict[str, Any]:
    """The trial's best checkpoint that still exists, which may be of another step than its best
    validation. Without a validated checkpoint it is the latest one."""
    best = trial.get("bestCheckpoint") or {}
    return {
        "checkpoint": best.get("uuid") or trial.get("latestCheckpoint"),
        "checkpoint_steps": best.get("totalBatches"),
    }


def _of_experiment(top: Checkpoint, metric: str) -> dict[str, Any] | None:
    """None for a checkpoint without the metric, which is no better than any other."""
    metrics = (top.training.validation_metrics if top.training else None) or {}
    value = (metrics.get("avgMetrics") or {}).get(metric)
    if value is None:
        return None
    steps = (top.metadata or {}).get("steps_completed")
    return {"uuid": top.uuid, "trial": top.trial_id, "steps": steps, "value": value}


def _top_line(top: dict[str, Any], best: dict[str, Any]) -> str:
    why = (
        "as good, and there first"
        if top["value"] == best["value"]
        else "the best step that has one"
    )
    return (
        f"best checkpoint: {top['uuid']} (trial {top['trial']}, {best['metric']} {top['value']} after "
        f"{top['steps']} steps: {why})"
    )


def _checkpoint_line(best: dict[str, Any]) -> str:
    uuid, steps = best["checkpoint"], best["checkpoint_steps"]
    if uuid is None:
        return "checkpoint: none"
    if steps is None:
        return f"checkpoint: {uuid} (the latest; no validated step has a checkpoint)"
    if best["steps"] in (None, steps):
        return f"checkpoint: {uuid}"
    return (
        f"checkpoint: {uuid} (after {counted(steps, 'step')}; the step of the best validation, "
        f"{best['steps']}, has no checkpoint)"
    )


def summary(document: dict[str, Any], seconds: float) -> list[str]:
    """The result as lines of text."""
    experiment, best = document["experiment"], document["best"]
    trials = ", ".join(f"{n} {name.lower()}" for name, n in sorted(experiment["trials"].items()))
    lines = [
        f"experiment {experiment['id']} {experiment['state']} after {f.duration(seconds)}"
        f" (trials: {trials or 'none'})"
    ]
    # Without a best trial it says what the trials reported instead, and which name is near.
    if experiment["reason"] and (experiment["state"] != "COMPLETED" or best is None):
        lines.append(f"reason: {experiment['reason']}")
    if best is not None:
        lines += [
            f"best trial: {best['trial']}",
            f"{best['metric']}: {best['value']}",
            *(
                [f"hyperparameters: {hparams}"]
                if (hparams := f.pairs(best["hparams"] or {}))
                else []
            ),
            _checkpoint_line(best),
        ]
        top = document["best_checkpoint"]
        if top is not None and top["uuid"] != best["checkpoint"]:
            lines.append(_top_line(top, best))
    elif experiment["state"] == "COMPLETED":
        lines.append(
            f"best trial: none; no trial reported a number as validation metric"
            f" {document['metric']!r} (searcher.metric); a script reports one by"
            " core_context.train.report_validation_metrics (docs/train/core-api.md)"
        )
    return lines


def explain_failure(session: Session, tracker: Tracker) -> None:
    """Prints the first failed trial's reason, the end of its logs, and the command for all of them."""
    failed = [t for t in tracker.trials.values() if f.state(t["state"]) == "ERROR"]
    if not failed:
        return
    trial = failed[0]
    talk(f"trial {trial['id']} failed: {trial.get('reason') or 'no reason was recorded'}")
    from determined.experimental import Trial

    try:
        entries = list(Trial(trial["id"], session).iter_log_entries(tail=ASKED))
    except errors.APIException as error:
        talk(f"its logs cannot be read: {error.message}")
        return
    for line in last_words(entries):
        talk(f"  {line}")
    talk(f"all of its logs: det t logs {trial['id']}")
