"""Reads a batch of metric reports from JSON, as rows for COPY and additions to the summaries."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_service.base.checks import check_bytes, check_int, check_time, check_value
from determined_service.base.errors import BadRequest
from determined_service.ingest.copy_text import NULL, json_field, text_field
from determined_service.ingest.streams import StreamPosition, read_position
from determined_service.ingest.summaries import Summaries
from determined_service.ingest.values import replace_nul

VALIDATION = "validation"
MAX_STEPS = limits.INT64
_SCALARS = frozenset({float, int, bool, type(None)})
_SHORT_CHARS = 256
"""Names and texts up to this length are within their limits for any characters."""


@dataclass(slots=True)
class ValidationReport:
    """A report of the group ``validation``; ``line`` is its place among the batch's rows."""

    line: int
    steps: int
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reported:
    """A validation that is now a row. ``allocation_id``: who sent it, as in its batch."""

    trial_id: int
    row_id: int
    validation: ValidationReport
    allocation_id: str | None


@dataclass(slots=True)
class ReportBatch:
    """Reports of one leg, ready to be written."""

    trial_id: int
    run_id: int
    position: StreamPosition | None = None
    # The allocation that sent it; None: a user or an agent did.
    allocation_id: str | None = None
    # One line per report: everything after the columns id, trial_id and run_id.
    lines: list[bytes] = field(default_factory=list)
    validations: list[ValidationReport] = field(default_factory=list)
    # {group: lowest steps_completed}
    first_steps: dict[str, int] = field(default_factory=dict)
    summaries: Summaries = field(default_factory=Summaries)

    def add(
        self,
        group: str,
        steps: int,
        metrics: dict[str, Any],
        batch_metrics: list[Any] | None,
        end_time: str | None,
        *,
        least: int = 0,
        by_time: bool = False,
    ) -> None:
        """Adds one report; raises BadRequest for what cannot be one, or is larger than the limits.

        ``least``: of its steps. MLflow's clients log values from before the training as step -1. ``by_time``:
        of several of one step the latest is the last.
        """
        moment = _moment(end_time)
        if type(steps) is not int or not least <= steps <= MAX_STEPS:
            raise BadRequest(
                f"steps_completed must be a whole number from {least} on, not {show(steps)}"
                + (f": at most {MAX_STEPS} is allowed" if type(steps) is int and steps > 0 else "")
            )
        if not isinstance(metrics, dict):
            raise BadRequest(f"metrics must be an object of names and values, not {show(metrics)}")
        if not isinstance(group, str) or not group:
            raise BadRequest(f"group must be a name, not {show(group)}")
        if batch_metrics is not None and not isinstance(batch_metrics, list):
            raise BadRequest(f"batch_metrics must be a list, not {show(batch_metrics)}")
        _check_name(group, "group")
        _check_metrics(metrics)
        encoded = _encode(metrics, "metrics")
        check_bytes(len(encoded), limits.METRICS_OF_REPORT_BYTES, "metrics")
        if b"\\u0000" in encoded:
            metrics = replace_nul(metrics)
            encoded = orjson.dumps(metrics)
        extra = NULL
        if batch_metrics:
            check_value(batch_metrics, "batch_metrics", values=limits.LARGE_VALUES, nul=True)
            extra = json_field(orjson.dumps(replace_nul(batch_metrics)))
        if group == VALIDATION:
            self.validations.append(ValidationReport(len(self.lines), steps, metrics))
        self.lines.append(
            b"%s\t%d\t%s\t%s\t%s\n"
            % (text_field(group), steps, moment.isoformat().encode(), json_field(encoded), extra)
        )
        # Reports from before the training do not mark the restart of a leg.
        if 0 <= steps < self.first_steps.get(group, MAX_STEPS + 1):
            self.first_steps[group] = steps
        self.summaries.add(group, steps, metrics, moment if by_time else None)


def _check_name(name: str, what: str) -> None:
    if len(name) > _SHORT_CHARS:
        found = len(name.encode("utf-8", "replace"))
        check_bytes(found, limits.METRIC_NAME_BYTES, f"{what} {show(name)}")


def _check_metrics(metrics: dict[str, Any]) -> None:
    if max(map(len, metrics), default=0) > _SHORT_CHARS:
        for name in metrics:
            _check_name(name, "the name of the metric")
    # Most reports hold only numbers, which this test finds at C's speed.
    if _SCALARS.issuperset(map(type, metrics.values())):
        return
    for name, value in metrics.items():
        kind = type(value)
        if kind in _SCALARS or (kind is str and len(value) <= _SHORT_CHARS):
            continue
        shown = f"metrics.{name[:80]}"
        check_value(value, shown, nul=True)
        check_bytes(len(_encode(value, shown)), limits.METRIC_VALUE_BYTES, shown)


def _encode(value: Any, path: str) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:  # half of a surrogate pair
        raise BadRequest(f"{path}: cannot be stored: {error}") from error


def _moment(text: str | None) -> datetime.datetime:
    if text is None:
        return datetime.datetime.now(datetime.UTC)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except (ValueError, TypeError) as error:
        raise BadRequest(f"end_time must be an ISO 8601 time, not {show(text)}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return check_time(moment, "end_time", limits.REPORT_YEARS)


def _reports(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    reports = body.get("reports")
    if not isinstance(reports, list):
        raise BadRequest("reports must be a list")
    for report in reports:
        if not isinstance(report, dict):
            raise BadRequest(f"a report must be an object, not {show(report)}")
        yield report


def read_batch(trial_id: int, body: Any) -> ReportBatch:
    """The body of ``POST /api/v1/trials/{id}/metrics/batch``; raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be an object")
    run_id = check_int(body.get("run_id"), "run_id", most=limits.INT32)
    batch = ReportBatch(trial_id, run_id, read_position(body))
    for report in _reports(body):
        batch.add(
            report.get("group"),  # type: ignore[arg-type]
            report.get("steps_completed"),  # type: ignore[arg-type]
            report.get("metrics"),  # type: ignore[arg-type]
            report.get("batch_metrics"),
            report.get("end_time"),
        )
    return batch


def read_upstream_report(trial_id: int, group: str | None, body: Any) -> ReportBatch:
    """One report as Determined's own harness sends it (``v1TrialMetrics``); raises BadRequest.

    ``metrics`` is ``{"avgMetrics": {…}, "batchMetrics": […]}``.
    """
    if not isinstance(body, dict):
        raise BadRequest("the body must be an object")
    given = body.get("metrics") or {}
    if not isinstance(given, dict):
        raise BadRequest(f"metrics must be an object with avgMetrics, not {show(given)}")
    run_id = check_int(body.get("trialRunId") or 0, "trialRunId", most=limits.INT32)
    batch = ReportBatch(trial_id, run_id)
    batch.add(
        group or "",
        body.get("stepsCompleted") or 0,
        given.get("avgMetrics") or {},
        given.get("batchMetrics"),
        body.get("reportTime"),
    )
    return batch
