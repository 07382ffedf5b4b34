"""Reported metrics: the SDK's classes, and reading reports."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from determined.common.api.session import Session
from determined.common.nonfinite import numbers

TRAINING = "training"
VALIDATION = "validation"

# All ids are in one address, whose length is limited.
_TRIALS_AT_ONCE = 500


def parse_time(text: str | None) -> datetime.datetime | None:
    """An ISO 8601 time of the REST API; None stays None."""
    return datetime.datetime.fromisoformat(text) if text else None


@dataclass
class TrialMetrics:
    """One report. The trial chose ``steps_completed``, so reports may be in another order."""

    trial_id: int
    trial_run_id: int
    steps_completed: int
    end_time: datetime.datetime | None
    metrics: dict[str, Any]
    group: str
    batch_metrics: list[dict[str, Any]] | None = None

    @property
    def total_batches(self) -> int:
        """``steps_completed``, under its older name."""
        return self.steps_completed


class TrainingMetrics(TrialMetrics):
    """A report of the group ``training``."""


class ValidationMetrics(TrialMetrics):
    """A report of the group ``validation``."""


_KINDS = {TRAINING: TrainingMetrics, VALIDATION: ValidationMetrics}


def iter_metrics(session: Session, trial_ids: Sequence[int], group: str) -> Iterator[TrialMetrics]:
    """Every report of ``group`` by these trials, trial by trial."""
    return map(_parse, iter_reports(session, trial_ids, group))


def iter_reports(
    session: Session, trial_ids: Sequence[int], group: str
) -> Iterator[dict[str, Any]]:
    """As :func:`iter_metrics`: the service's JSON of each report."""
    # At least one request: the service refuses one that names no trial.
    for begin in range(0, max(1, len(trial_ids)), _TRIALS_AT_ONCE):
        some = list(trial_ids[begin : begin + _TRIALS_AT_ONCE])
        params = {"trialIds": some, "group": group}
        for answer in session.stream("/api/v1/trials/metrics/trial_metrics", params=params):
            yield from answer["metrics"]


def parse_reports(answer: dict[str, Any]) -> Iterator[TrialMetrics]:
    """The reports in an answer of the REST API, whatever their group."""
    for report in answer["metrics"]:
        yield _parse(report)


def _parse(report: dict[str, Any]) -> TrialMetrics:
    group = report["group"]
    values = report.get("metrics") or {}
    # The REST API's names, from the time when there were these two groups only.
    key = "validation_metrics" if group == VALIDATION else "avg_metrics"
    return _KINDS.get(group, TrialMetrics)(
        trial_id=report["trialId"],
        trial_run_id=report["trialRunId"],
        steps_completed=report["totalBatches"],
        end_time=parse_time(report.get("endTime")),
        metrics=numbers(values.get(key) or {}),
        group=group,
        batch_metrics=numbers(values.get("batch_metrics")),
    )
