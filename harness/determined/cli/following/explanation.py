"""The tables that `det experiment describe` adds to upstream's: runs, waiting requests, failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from determined.cli.following.last_words import ASKED, last_words
from determined.cli.output import format as f
from determined.cli.output.render import Column, Record, Section
from determined.cli.output.runs import RUNS
from determined.common.api import errors

if TYPE_CHECKING:
    from determined.experimental import Experiment, Trial

SHOWN = 200
"""How many trials, and how many requests that wait, a description shows as a table."""
LOGS_OF = 3
"""How many failed trials to show log tails for."""

LEGS = (Column("Trial ID", "trialId"), *RUNS)
WAITING = (
    Column("Experiment ID", "experimentId"),
    Column("Trial ID", "trialId"),
    Column("Since", f.field("since", f.time), spare=3),
    Column("Reason", "reason"),
)
FAILURES = (
    Column("Trial ID", "trialId"),
    Column("Restarts", "restarts"),
    Column("Reason", "reason"),
)
LAST_WORDS = (Column("Log", "line"),)


def read(
    experiment: Experiment,
    trials: Sequence[Trial],
    failed: Sequence[Trial] | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Reads ``waiting`` and ``failures`` of the experiment, and adds ``legs`` to each trial's document.

    A failure has ``trialId``, ``restarts``, ``reason`` and ``lastLogs``: lines of text for the first
    :data:`LOGS_OF` failures, None for the others. ``failed``: the trials that failed; None: those of
    ``trials``. ``limit``: ``trials`` are only so many, the newest, and so much of what waits is wanted;
    ``waitingTotal`` says how much there is.
    """
    found = experiment.explain(limit)
    by_trial: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for leg in found["legs"]:
        by_trial[leg["trialId"]].append(leg)
    for trial in trials:
        trial.document["legs"] = by_trial[trial.id]
    if failed is None:
        failed = [trial for trial in trials if f.state(trial.document["state"]) == "ERROR"]
    failures = [
        {
            "trialId": trial.id,
            "restarts": trial.restarts,
            "reason": trial.document.get("reason"),
            "lastLogs": _last_logs(trial) if number < LOGS_OF else None,
        }
        for number, trial in enumerate(failed)
    ]
    waiting = {"waiting": found["waiting"], "failures": failures}
    if limit is not None:
        waiting["waitingTotal"] = found.get("waitingTotal", len(found["waiting"]))
    return waiting


def _last_logs(trial: Trial) -> list[str]:
    try:
        return last_words(list(trial.iter_log_entries(tail=ASKED)))
    except errors.APIException as error:
        return [f"(its logs cannot be read: {error.message})"]


def sections(documents: Sequence[dict[str, Any]]) -> list[Section]:
    """The tables of runs, waiting requests and failed trials; empty tables are left out."""
    legs: list[Record] = [
        leg for document in documents for trial in document["trials"] for leg in trial["legs"]
    ]
    waiting: list[Record] = [
        {**item, "experimentId": document["id"]}
        for document in documents
        for item in document["waiting"]
    ]
    failures: list[Record] = [failure for each in documents for failure in each["failures"]]
    found = []
    if legs:
        found.append(Section("Runs", LEGS, legs))
    if waiting:
        found.append(Section("Waiting", WAITING, waiting))
    if failures:
        found.append(Section("Failed trials", FAILURES, failures))
    for failure in failures:
        if failure["lastLogs"]:
            lines = [{"line": line} for line in failure["lastLogs"]]
            title = f"End of the logs of trial {failure['trialId']} (all: det t logs {failure['trialId']})"
            found.append(Section(title, LAST_WORDS, lines))
    return found
