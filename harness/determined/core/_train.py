"""The API by which a trial reports its training."""

from __future__ import annotations

import enum
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from determined.common.wire import limits
from determined.core._connection import Connection
from determined.core._distributed import DistributedContext
from determined.core._metrics import Freezer
from determined.core._reporter import Reporter
from determined.core._searcher import SearcherContext, unheeded_length
from determined.core._tensorboard import TensorboardFiles, TensorboardMode, temporary_directory

logger = logging.getLogger("determined.core")


class EarlyExitReason(enum.Enum):
    """The reason for which a trial ends early."""

    INVALID_HP = "EXITED_REASON_INVALID_HP"
    USER_REQUESTED_STOP = "EXITED_REASON_USER_REQUESTED_STOP"


class TrainContext:
    """Metrics, progress, status and metadata of the trial.

    Metrics are dicts of numbers, texts, lists and dicts; scalars and arrays of numpy and torch are
    converted, NaN and infinities kept, anything else is left out with a warning. They are copied
    when they are reported and sent in the background; a report that the service refuses raises
    errors.ReportRefused from the next call here, or when the context closes.
    """

    def __init__(
        self,
        connection: Connection,
        reporter: Reporter,
        dist: DistributedContext,
        trial_id: int,
        experiment_id: int,
        searcher: dict[str, Any],
        tensorboard_mode: TensorboardMode,
        tensorboard: TensorboardFiles,
        operations: SearcherContext | None = None,
    ) -> None:
        self._connection = connection
        self._reporter = reporter
        self._dist = dist
        self._trial_id = trial_id
        self._experiment_id = experiment_id
        self._time_metric = searcher.get("time_metric") if searcher.get("max_time") else None
        self._tensorboard_mode = TensorboardMode(tensorboard_mode)
        self._tensorboard = tensorboard
        self._operations = operations
        self._unheeded = None if operations is None else unheeded_length(searcher)
        self._validated_at: int | None = None
        self._groups_of_rank: set[str] = set()

    def set_status(self, status: str) -> None:
        """Set a short text that describes the trial's current activity, e.g. "validating"; the last text
        counts."""
        path = f"/api/v1/trials/{self._trial_id}/runner/metadata"
        self._reporter.post_latest(path, {"state": status})

    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Metrics of training up to ``steps_completed`` batches; ``batch_metrics``: one per batch."""
        self._report("training", steps_completed, metrics, batch_metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Metrics of a validation after ``steps_completed`` batches; the searcher's is among them.

        Raises ValueError when the configuration names a ``searcher.time_metric`` and it is not in
        ``metrics``: without it the searcher cannot tell how far the trial is.
        """
        self._report("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Metrics of any group; "training" and "validation" are the built-in ones."""
        self._report(group, steps_completed, metrics)

    def _report(
        self,
        group: str,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        steps_completed = check_report(group, steps_completed, metrics)
        if group == "validation" and self._time_metric and self._time_metric not in metrics:
            raise ValueError(
                f"validation metrics must contain {self._time_metric!r}, the searcher.time_metric "
                f"of the experiment configuration; found {', '.join(map(str, metrics)) or 'none'}"
            )
        if self._dist.rank > 0 and group not in self._groups_of_rank:
            self._warn_of_rank(group)
        frozen = self._reporter.report(group, steps_completed, metrics, batch_metrics)
        self._tensorboard.log(group, steps_completed, frozen)
        if group == "validation" and self._unheeded is not None:
            self._warn_if_it_goes_on(steps_completed)

    def _warn_of_rank(self, group: str) -> None:
        """Once for each group, unless the rank is part of its name."""
        self._groups_of_rank.add(group)
        rank = self._dist.rank
        if str(rank) not in group:
            logger.warning(
                "rank %d reports %s metrics, which are stored beside the reports of the other ranks: report "
                "in rank 0 only, or let the group's name say the rank, such as '%s_%d'",
                rank,
                group,
                group,
                rank,
            )

    def _warn_if_it_goes_on(self, steps: int) -> None:
        """Once, at the second step that is validated without an operation."""
        if self._operations is None or not self._operations.is_passed_by():
            self._unheeded = None
        elif self._validated_at is None:
            self._validated_at = steps
        elif steps > self._validated_at:
            logger.warning("%s", self._unheeded)
            self._unheeded = None

    def report_progress(self, progress: float) -> None:
        """Report the share of the training that is done, from 0 to 1; sent in the background."""
        check_progress(progress)
        path = f"/api/v1/trials/{self._trial_id}/progress"
        self._reporter.post_latest(path, {"progress": float(progress), "is_raw": True})

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Say why the script is about to exit. The first reason counts."""
        from determined.common.api.errors import BadRequestException, ConflictException

        self._reporter.flush()
        body = {"reason": EarlyExitReason(reason).value}
        try:
            self._connection.post(f"/api/v1/trials/{self._trial_id}/early_exit", json=body)
        except ConflictException:
            raise
        except BadRequestException as error:
            if error.status_code != 400:
                raise
            logger.warning("the service did not record the early exit: %s", error)

    def get_experiment_best_validation(self) -> float | None:
        """The best ``searcher.metric`` of all trials of the experiment; None before the first.

        Validations that this trial has reported count.
        """
        from determined.common.api.errors import NotFoundException

        self._reporter.flush()
        path = f"/api/v1/experiments/{self._experiment_id}/searcher/best_searcher_validation_metric"
        try:
            metric = self._connection.get(path).get("metric")
        except NotFoundException:
            return None
        return None if metric is None else float(metric)

    def set_metadata(self, metadata: dict[str, Any]) -> dict[str, Any] | None:
        """Replace the trial's metadata (JSON). Returns the metadata that is stored now."""
        path = f"/api/v1/runs/{self._trial_id}/metadata"
        stored: dict[str, Any] | None = self._connection.post(
            path, json={"runId": self._trial_id, "metadata": metadata}
        ).get("metadata")
        return stored

    def get_metadata(self) -> dict[str, Any] | None:
        """The trial's metadata."""
        path = f"/api/v1/runs/{self._trial_id}/metadata"
        stored: dict[str, Any] | None = self._connection.get(path).get("metadata")
        return stored

    def get_tensorboard_path(self) -> Path:
        """A local directory to write TensorBoard event files to; each process has its own."""
        return self._tensorboard.get_path()

    def _log_for_tensorboard(self, enabled: bool) -> None:
        """Switch the writing of reported metrics as event files on or off, in the mode AUTO."""
        self._tensorboard.logs_metrics = enabled and self._tensorboard_mode == TensorboardMode.AUTO

    def upload_tensorboard_files(
        self,
        selector: Callable[[Path], bool] = lambda _: True,
        mangler: Callable[[Path, int], Path] = lambda path, _: path,
    ) -> None:
        """Copy new and changed files to checkpoint storage (docs/train/tensorboard.md).

        ``selector`` and ``mangler`` (path, rank → path to store as) get paths relative to
        ``get_tensorboard_path()``. Raises RuntimeError in the mode AUTO, which does it by itself.
        """
        if self._tensorboard_mode == TensorboardMode.AUTO:
            raise RuntimeError(
                "upload_tensorboard_files() needs "
                "core.init(tensorboard_mode=TensorboardMode.MANUAL); the mode AUTO uploads by "
                "itself"
            )
        self._tensorboard.sync(selector, mangler, self._dist.rank)


class DummyTrainContext(TrainContext):
    """Off-cluster: reports are checked as on the cluster, and logged."""

    def __init__(self, tensorboard_path: Path | None = None) -> None:
        self._freezer = Freezer()
        self._metadata: dict[str, Any] | None = None
        self._path = tensorboard_path

    def set_status(self, status: str) -> None:
        logger.info("status: %s", status)

    def _report(
        self,
        group: str,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        steps_completed = check_report(group, steps_completed, metrics)
        frozen, _ = self._freezer.freeze(metrics)
        logger.info("%s metrics after %d steps: %s", group, steps_completed, frozen)

    def report_progress(self, progress: float) -> None:
        check_progress(progress)
        logger.info("progress: %.1f %%", 100 * progress)

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        logger.info("early exit: %s", EarlyExitReason(reason).name)

    def get_experiment_best_validation(self) -> float | None:
        return None

    def set_metadata(self, metadata: dict[str, Any]) -> dict[str, Any] | None:
        self._metadata = dict(metadata)
        return self._metadata

    def get_metadata(self) -> dict[str, Any] | None:
        return self._metadata

    def get_tensorboard_path(self) -> Path:
        if self._path is None:
            self._path = temporary_directory()
        return self._path

    def _log_for_tensorboard(self, enabled: bool) -> None:
        """Nothing is written off-cluster."""

    def upload_tensorboard_files(
        self,
        selector: Callable[[Path], bool] = lambda _: True,
        mangler: Callable[[Path, int], Path] = lambda path, _: path,
    ) -> None:
        logger.info(
            "TensorBoard files are not uploaded off the cluster; they stay in %s",
            self.get_tensorboard_path(),
        )


def check_report(group: str, steps_completed: int, metrics: Mapping[str, Any]) -> int:
    """``steps_completed`` as an int. Raises TypeError and ValueError for a report of the wrong shape."""
    if not isinstance(group, str) or not group or "." in group:
        raise ValueError(f"a metric group is a name without '.', found {group!r}")
    try:
        steps = operator.index(steps_completed)
    except TypeError:
        raise TypeError(f"steps_completed must be an integer, found {steps_completed!r}") from None
    check_steps(steps)
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be a dict, found {type(metrics).__name__}")
    return steps


def check_steps(steps: int) -> None:
    """Raises ValueError for a number of steps that no checkpoint and no report can have."""
    if not 0 <= steps <= limits.INT64:
        raise ValueError(
            f"steps_completed must be a number of batches from 0 to {limits.INT64} (64 bits), found {steps}"
        )


def check_progress(progress: float) -> None:
    """Raises ValueError outside of 0..1."""
    if not 0.0 <= progress <= 1.0:
        raise ValueError(f"progress must be between 0 and 1, found {progress}")
