"""A trial: a training run with one set of hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack

from determined.common.api import pages
from determined.common.api.session import Session
from determined.experimental import _checkpoint, _metrics
from determined.experimental._checkpoint import Checkpoint
from determined.experimental._enums import (
    CheckpointSortBy,
    LogLevel,
    OrderBy,
    TrialState,
)

if TYPE_CHECKING:
    from determined.experimental._experiment import Experiment
    from determined.experimental._logs import LogFilters


class Trial:
    """A trial at the service. Attributes are as of the last :meth:`reload`.

    Attributes:
        id, experiment_id: numbers.
        hparams: hyperparameter name to value.
        state: a :class:`TrialState`.
        summary_metrics: ``{group: {metric: {"count", "sum", "min", "max", "last", …}}}``.
        restarts: how many times it was restarted after a failure.
        steps_completed: the last step that it reported.
        task_id: the task that it runs as now, or ran as last.
        document: the service's JSON, including fields that are not attributes.
    """

    def __init__(self, trial_id: int, session: Session) -> None:
        self.id = trial_id
        self._session = session
        self.experiment_id: int | None = None
        self.hparams: dict[str, Any] | None = None
        self.state: TrialState | None = None
        self.summary_metrics: dict[str, Any] | None = None
        self.restarts: int | None = None
        self.steps_completed: int | None = None
        self.task_id: str | None = None
        self.document: dict[str, Any] = {}

    @property
    def trial_id(self) -> int:
        """``id``, under its older name."""
        return self.id

    @classmethod
    def _from_json(cls, data: dict[str, Any], session: Session) -> Trial:
        trial = cls(data["id"], session)
        trial._fill(data)
        return trial

    def _fill(self, data: dict[str, Any]) -> None:
        self.document = data
        self.experiment_id = data["experimentId"]
        self.hparams = data.get("hparams") or {}
        self.state = TrialState(data["state"])
        self.summary_metrics = _metrics.numbers(data.get("summaryMetrics"))
        self.restarts = data.get("restarts")
        self.steps_completed = data.get("totalBatchesProcessed")
        self.task_id = data.get("taskId")

    @property
    def _path(self) -> str:
        return f"/api/v1/trials/{self.id}"

    def reload(self) -> None:
        """Fetches all attributes again. Raises NotFoundException."""
        self._fill(self._session.get(self._path)["trial"])

    def get_experiment(self) -> Experiment:
        """The experiment that this trial belongs to."""
        from determined.experimental._experiment import Experiment

        if self.experiment_id is None:
            self.reload()
        assert self.experiment_id is not None
        experiment = Experiment(self.experiment_id, self._session)
        experiment.reload()
        return experiment

    def kill(self) -> None:
        """Ends the trial at once. A trial that has ended does not change."""
        self._session.post(f"{self._path}/kill", json={})

    def iter_logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        container_ids: list[str] | None = None,
        rank_ids: list[int] | None = None,
        stdtypes: list[str] | None = None,
        min_level: LogLevel | None = None,
        timestamp_before: str | int | None = None,
        timestamp_after: str | int | None = None,
        sources: list[str] | None = None,
        search_text: str | None = None,
    ) -> Iterator[str]:
        """Log lines, oldest first, each with its time, rank and level, and its line end.

        ``follow`` continues until the trial has ended. ``head`` or ``tail`` limits the number of
        lines; both together raise ValueError. Times are Unix seconds or RFC 3339.
        """
        entries = self.iter_log_entries(
            follow,
            head=head,
            tail=tail,
            container_ids=container_ids,
            rank_ids=rank_ids,
            stdtypes=stdtypes,
            min_level=min_level,
            timestamp_before=timestamp_before,
            timestamp_after=timestamp_after,
            sources=sources,
            search_text=search_text,
        )
        for entry in entries:
            yield entry["message"]

    logs = iter_logs

    def iter_log_entries(
        self, follow: bool = False, **filters: Unpack[LogFilters]
    ) -> Iterator[dict[str, Any]]:
        """As :meth:`iter_logs`: the service's JSON of each line."""
        return chain.from_iterable(self.iter_log_batches(follow, **filters))

    def iter_log_batches(
        self, follow: bool = False, **filters: Unpack[LogFilters]
    ) -> Iterator[list[dict[str, Any]]]:
        """As :meth:`iter_log_entries`: each time those that arrived together."""
        from determined.experimental import _logs

        return _logs.iter_batches(self._session, f"{self._path}/logs", follow, filters)

    def iter_metrics(self, group: str) -> Iterator[_metrics.TrialMetrics]:
        """Every report of ``group`` (``"training"``, ``"validation"`` or another)."""
        return _metrics.iter_metrics(self._session, [self.id], group)

    stream_metrics = iter_metrics

    def stream_training_metrics(self) -> Iterator[_metrics.TrialMetrics]:
        """Every training report."""
        return self.iter_metrics(_metrics.TRAINING)

    def stream_validation_metrics(self) -> Iterator[_metrics.TrialMetrics]:
        """Every validation report."""
        return self.iter_metrics(_metrics.VALIDATION)

    def iter_workloads(
        self,
        *,
        batch_metrics: bool = False,
        offset: int = 0,
        max_results: int | None = None,
        page_size: int = 1000,
    ) -> Iterator[dict[str, Any]]:
        """The trial's reports, validations and checkpoints in the order of their steps.

        Each is the REST API's JSON with its ``kind``: training, validation or checkpoint. ``batch_metrics``
        includes the metrics of single batches.
        """
        found = pages.read(
            self._session,
            f"{self._path}/workloads",
            "workloads",
            {"includeBatchMetrics": True if batch_metrics else None},
            offset=offset,
            limit=max_results,
            page_size=page_size,
        )
        for item in found:
            for kind in ("training", "validation", "checkpoint"):
                if item.get(kind):
                    yield {"kind": kind, **item[kind]}

    def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """The trial's checkpoints, by default sorted by the searcher's metric.

        ``sort_by`` names a validation metric or is a :class:`CheckpointSortBy`.
        """
        path = f"{self._path}/checkpoints"
        return _checkpoint.read(self._session, path, sort_by, order_by, max_results)

    def get_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
    ) -> list[Checkpoint]:
        """As :meth:`list_checkpoints`."""
        return self.list_checkpoints(sort_by, order_by)

    def top_checkpoint(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """The checkpoint with the best validation metric; see :meth:`select_checkpoint`."""
        return self.select_checkpoint(
            best=True, sort_by=sort_by, smaller_is_better=smaller_is_better
        )

    def select_checkpoint(
        self,
        latest: bool = False,
        best: bool = False,
        uuid: str | None = None,
        sort_by: str | None = None,
        smaller_is_better: bool | None = None,
    ) -> Checkpoint:
        """One of the trial's checkpoints.

        Exactly one of ``latest`` (most steps), ``best`` and ``uuid`` must be given. ``best`` compares
        by the searcher's metric, or by the validation metric ``sort_by``, which needs
        ``smaller_is_better``.

        Raises:
            ValueError: not exactly one of them, or ``sort_by`` without ``smaller_is_better``.
            CheckpointNotFound: there is no such checkpoint.
        """
        if sum([latest, best, uuid is not None]) != 1:
            raise ValueError("give exactly one of latest, best and uuid")
        if (sort_by is not None or smaller_is_better is not None) and not best:
            raise ValueError("sort_by and smaller_is_better need best=True")
        if uuid is not None:
            checkpoint = Checkpoint(self._session, uuid)
            checkpoint.reload()
            return checkpoint
        path = f"{self._path}/checkpoints"
        found: Checkpoint | None
        if latest:
            found = _checkpoint.latest(self._session, path)
        else:
            searcher = self.get_experiment().get_config().get("searcher") or {}
            found = next(
                _checkpoint.best_first(self._session, path, sort_by, smaller_is_better, searcher),
                None,
            )
        if found is None:
            raise _checkpoint.none_found(f"trial {self.id}")
        return found

    def _repr_html_(self) -> str:
        from determined.common.wire import pages
        from determined.experimental import _notebook_view

        facts = {
            "experiment": self.experiment_id,
            "state": self.state and self.state.value.removeprefix("STATE_").lower(),
            "why": self.document.get("reason") or None,
            "steps": self.steps_completed,
            "restarts": self.restarts or None,
            "best value": self.document.get("searcherMetricValue"),
            **(self.hparams or {}),
        }
        return _notebook_view.table(
            f"trial {self.id}", self._session.master + pages.trial(self.id), facts
        )

    def __repr__(self) -> str:
        return f"Trial(id={self.id}, experiment_id={self.experiment_id})"


TrialReference = Trial
