"""Trials, metrics and checkpoints of an experiment as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from determined.experimental._metrics import TrialMetrics, numbers, parse_time

if TYPE_CHECKING:
    import pandas as pd

    from determined.experimental._checkpoint import Checkpoint
    from determined.experimental._trial import Trial


def _frame(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """A row for each of ``rows``; nested values become columns (``hparams.lr``). ``columns`` come first, and
    are there also without a row. The first one is the index.

    Raises ImportError if pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("DataFrames need pandas: pip install pandas") from error
    found = pd.json_normalize(list(rows))
    more = sorted(name for name in found.columns if name not in columns)
    return found.reindex(columns=[*columns, *more]).set_index(columns[0])


_TRIALS = (
    "trial_id",
    "state",
    "steps_completed",
    "restarts",
    "searcher_metric",
    "start_time",
    "end_time",
)
_REPORTS = ("trial_id", "trial_run_id", "steps_completed", "end_time")
_CHECKPOINTS = (
    "uuid",
    "trial_id",
    "steps_completed",
    "state",
    "report_time",
    "bytes",
    "searcher_metric",
)


def of_trials(trials: Iterable[Trial]) -> pd.DataFrame:
    """See :meth:`Experiment.trials_dataframe`."""
    rows = (
        {
            "trial_id": trial.id,
            "state": str(trial.state),
            "steps_completed": trial.steps_completed,
            "restarts": trial.restarts,
            "searcher_metric": numbers(trial.document.get("searcherMetricValue")),
            "start_time": parse_time(trial.document.get("startTime")),
            "end_time": parse_time(trial.document.get("endTime")),
            "hparams": trial.hparams,
        }
        for trial in trials
    )
    return _frame(rows, _TRIALS)


def of_reports(reports: Iterable[TrialMetrics]) -> pd.DataFrame:
    """See :meth:`Experiment.metrics_dataframe`."""
    rows = (
        {
            "trial_id": report.trial_id,
            "trial_run_id": report.trial_run_id,
            "steps_completed": report.steps_completed,
            "end_time": report.end_time,
            "metrics": report.metrics,
        }
        for report in reports
    )
    return _frame(rows, _REPORTS)


def of_checkpoints(checkpoints: Iterable[Checkpoint]) -> pd.DataFrame:
    """See :meth:`Experiment.checkpoints_dataframe`."""
    rows = (
        {
            "uuid": checkpoint.uuid,
            "trial_id": checkpoint.trial_id,
            "steps_completed": (checkpoint.metadata or {}).get("steps_completed"),
            "state": str(checkpoint.state),
            "report_time": checkpoint.report_time,
            "bytes": sum((checkpoint.resources or {}).values()),
            "searcher_metric": numbers(
                (checkpoint.document.get("training") or {}).get("searcherMetric")
            ),
            "metrics": _validation(checkpoint),
        }
        for checkpoint in checkpoints
    )
    return _frame(rows, _CHECKPOINTS)


def _validation(checkpoint: Checkpoint) -> dict[str, Any]:
    found = checkpoint.training.validation_metrics if checkpoint.training else {}
    return found.get("avgMetrics") or {}
