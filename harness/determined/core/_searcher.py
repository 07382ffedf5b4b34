"""The lengths to train, as the searcher sets them.

Two forms of configuration, one loop in the script. With ``searcher.max_length`` the service hands
out operations one by one (a promotion may add another one later). With ``time_metric`` and
``max_time`` there is one operation of the full length, made here: the searcher decides from the
validation reports and stops the trial through preemption. With neither, the training code decides.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Iterator
from typing import Any

from determined.core._connection import Connection
from determined.core._distributed import DistributedContext
from determined.core._metrics import Unsupported, plain
from determined.core._reporter import Reporter

logger = logging.getLogger("determined.core")

# Seconds the service may hold the question for the next operation while the searcher thinks.
_POLL = 60.0
# Least seconds between two progress reports, and before the first.
_PROGRESS = 1.0


class Unit(enum.Enum):
    """The unit of a searcher's lengths."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherMode(enum.Enum):
    """The workers that may call ``operations()``.

    WorkersAskChief: all workers iterate in step. ChiefOnly: only the chief iterates.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class SearcherOperation:
    """Train until ``length`` units in all have been trained, validate, ``report_completed()``."""

    def __init__(
        self, length: int, is_chief: bool, reporter: Reporter | None, progress_path: str
    ) -> None:
        self._length = length
        self._is_chief = is_chief
        self._reporter = reporter
        self._progress_path = progress_path
        self._progress_at = time.monotonic()
        self._completed = False

    @property
    def length(self) -> int:
        """Absolute: the units trained by this and earlier legs count."""
        return self._length

    def _check(self, method: str) -> None:
        if not self._is_chief:
            raise RuntimeError(f"only the chief may call op.{method}()")

    def report_progress(self, length: float) -> None:
        """Report how far the training is, in the unit of ``length``; sent at most once a second.

        Raises RuntimeError from a worker, and after ``report_completed()`` for another length.
        """
        self._check("report_progress")
        if self._completed and length != self._length:
            raise RuntimeError(
                "op.report_progress() was called after op.report_completed(); call it before"
            )
        now = time.monotonic()
        if now - self._progress_at >= _PROGRESS:
            self._progress_at = now
            self._send_progress(length)

    def _send_progress(self, length: float) -> None:
        if self._reporter is not None:
            done = min(max(float(length) / max(self._length, 1), 0.0), 1.0)
            self._reporter.post_latest(self._progress_path, {"progress": done, "is_raw": True})

    def report_completed(self, searcher_metric: Any) -> None:
        """Report that the operation is done, with this value of the searcher's metric.

        Returns when the service has stored the value, and all metrics reported before. Raises RuntimeError
        from a worker and when called twice.
        """
        self._check("report_completed")
        if self._completed:
            raise RuntimeError("op.report_completed() was called already for this operation")
        self._send_completed(searcher_metric)
        self._completed = True

    def _send_completed(self, searcher_metric: Any) -> None:
        """Only mark the operation as done: the searcher sees the validation reports."""


class _AssignedOperation(SearcherOperation):
    """An operation that the service handed out; its progress and end are reported."""

    def __init__(
        self, length: int, is_chief: bool, reporter: Reporter, connection: Connection, trial_id: int
    ) -> None:
        super().__init__(length, is_chief, reporter, f"/api/v1/trials/{trial_id}/progress")
        self._connection = connection
        self._completed_path = f"/api/v1/trials/{trial_id}/searcher/completed_operation"

    def _send_completed(self, searcher_metric: Any) -> None:
        try:
            metric = plain(searcher_metric)
        except Unsupported as error:
            raise TypeError(f"op.report_completed() takes a number: {error}") from None
        assert self._reporter is not None
        # Completion is progress enough, and a late report must not take it back.
        self._reporter.drop_latest(self._progress_path)
        self._reporter.flush()
        body = {"op": {"length": self._length}, "searcherMetric": metric}
        self._connection.post(self._completed_path, json=body)


class SearcherContext:
    """``for op in core_context.searcher.operations(): …``"""

    def __init__(
        self,
        connection: Connection,
        reporter: Reporter,
        dist: DistributedContext,
        trial_id: int,
        allocation_id: str,
        max_time: int | None,
        units: Unit | None,
    ) -> None:
        self._connection = connection
        self._reporter = reporter
        self._dist = dist
        self._trial_id = trial_id
        self._allocation_id = allocation_id
        self._max_time = max_time
        self._units = units
        self._is_asked = False

    def operations(
        self,
        searcher_mode: SearcherMode = SearcherMode.WorkersAskChief,
        auto_ack: bool = True,
    ) -> Iterator[SearcherOperation]:
        """The operations, one after the other, waiting for the searcher in between.

        Each must be completed with ``report_completed()`` before the next is asked for, else RuntimeError.
        When there are no more operations, this is acknowledged to the service unless ``auto_ack`` is False;
        the script should exit then.
        """
        self._is_asked = True
        mode = SearcherMode(searcher_mode)
        is_chief = self._dist.rank == 0
        if mode == SearcherMode.ChiefOnly and not is_chief:
            raise RuntimeError("in the mode ChiefOnly, only the chief may call operations()")
        for length in self._lengths(mode, is_chief):
            operation = self._operation(length, is_chief)
            yield operation
            if is_chief and not operation._completed:
                raise RuntimeError(
                    f"the operation of length {length} was not completed: call "
                    "op.report_completed(metric) before the next operation"
                )
        if auto_ack and is_chief:
            self.acknowledge_out_of_ops()

    def _lengths(self, mode: SearcherMode, is_chief: bool) -> Iterator[int]:
        """Lengths from the service (chief) or from the chief (workers)."""
        while True:
            length = self._next_length() if is_chief else None
            if mode == SearcherMode.WorkersAskChief:
                length = self._dist.broadcast(length)
            if length is None:
                return
            yield length
            if self._max_time is not None:
                return

    def _next_length(self) -> int | None:
        """The current operation's length; None when there is nothing to do (now)."""
        if self._max_time is not None:
            return self._max_time
        self._reporter.flush()
        answer = self._connection.get(
            f"/api/v1/trials/{self._trial_id}/searcher/operation",
            params={"timeout_s": _POLL},
            timeout=_POLL + 10,
        )
        if answer.get("completed"):
            if answer.get("reason") == "RUNNER_WAITS":  # wire.search.NoOperation
                logger.info(
                    "the runner of this search waits for a slot, so this trial gives its own back until "
                    "it has its next operation"
                )
            return None
        return int(answer["op"]["validateAfter"]["length"])

    def _operation(self, length: int, is_chief: bool) -> SearcherOperation:
        if self._max_time is not None:
            path = f"/api/v1/trials/{self._trial_id}/progress"
            return SearcherOperation(length, is_chief, self._reporter, path)
        return _AssignedOperation(
            length, is_chief, self._reporter, self._connection, self._trial_id
        )

    def is_passed_by(self) -> bool:
        """True if the script trains without asking for operations."""
        return not self._is_asked

    def acknowledge_out_of_ops(self) -> None:
        """Tell the service that the script will now exit because there are no more operations.

        The trial goes on from its last checkpoint if the searcher has another one for it later.
        """
        if self._max_time is None:
            self._connection.post(
                f"/api/v1/allocations/{self._allocation_id}/signals/ack_preemption", json={}
            )

    def get_configured_units(self) -> Unit | None:
        """The unit of the lengths; None when the configuration gives plain numbers."""
        return self._units


class SearcherContextMissing(SearcherContext):
    """For configurations without a length: the training code decides."""

    def __init__(self) -> None:
        pass

    def _refuse(self) -> ValueError:
        return ValueError(
            "core_context.searcher has no operations: the experiment configuration sets neither "
            "searcher.max_length nor searcher.time_metric with max_time. Set searcher.max_length, "
            "or decide in the training code how long to train and leave out the operations() loop"
        )

    def operations(
        self,
        searcher_mode: SearcherMode = SearcherMode.WorkersAskChief,
        auto_ack: bool = True,
    ) -> Iterator[SearcherOperation]:
        """Raises ValueError: there are none."""
        raise self._refuse()

    def acknowledge_out_of_ops(self) -> None:
        """Raises ValueError."""
        raise self._refuse()

    def get_configured_units(self) -> Unit | None:
        """Raises ValueError."""
        raise self._refuse()


class DummySearcherOperation(SearcherOperation):
    """Off-cluster: progress and end are only logged."""

    def __init__(self, length: int, is_chief: bool) -> None:
        super().__init__(length, is_chief, None, "")

    def _send_progress(self, length: float) -> None:
        logger.debug("progress: %s of %s", length, self._length)

    def _send_completed(self, searcher_metric: Any) -> None:
        logger.info("operation of length %s completed: %s", self._length, searcher_metric)


class DummySearcherContext(SearcherContext):
    """Off-cluster: one operation, of length 1 unless told otherwise."""

    def __init__(self, dist: DistributedContext, length: int = 1) -> None:
        self._dist = dist
        self._max_time = length

    def _operation(self, length: int, is_chief: bool) -> SearcherOperation:
        return DummySearcherOperation(length, is_chief)

    def acknowledge_out_of_ops(self) -> None:
        """Nobody to tell."""

    def get_configured_units(self) -> Unit | None:
        return Unit.EPOCHS


def configured_target(searcher: dict[str, Any]) -> int:
    """The one length that a ``searcher`` section gives, in its unit, for training without a search."""
    if searcher.get("time_metric") is not None and searcher.get("max_time") is not None:
        return int(searcher["max_time"])
    length = searcher.get("max_length")
    return int(next(iter(length.values())) if isinstance(length, dict) else length or 1)


def configured_length(searcher: dict[str, Any]) -> tuple[int | None, Unit | None]:
    """(``max_time``, unit) of a ``searcher`` section.

    ``max_time`` is None for the form with ``max_length``; ``max_time`` wins when both are given.
    """
    if searcher.get("time_metric") is not None and searcher.get("max_time") is not None:
        return int(searcher["max_time"]), _unit(searcher["time_metric"])
    length = searcher.get("max_length")
    if isinstance(length, dict):
        return None, _unit(next((key for key, value in length.items() if value is not None), None))
    return None, _unit(searcher.get("unit"))


def _unit(name: str | None) -> Unit | None:
    return Unit.__members__.get(str(name).upper())


def has_operations(searcher: dict[str, Any]) -> bool:
    """True if a ``searcher`` section makes operations."""
    timed = searcher.get("time_metric") is not None and searcher.get("max_time") is not None
    custom = searcher.get("name") == "custom"
    return timed or custom or searcher.get("max_length") is not None


def unheeded_length(searcher: dict[str, Any]) -> str | None:
    """The warning for a script that asks for no operations, logged at its second validation. The service
    cannot warn by itself: the length has no unit by which the reports could tell that the trial is past
    it."""
    from determined.common.wire.search import NEVER_STOP

    name, length = searcher.get("name"), searcher.get("max_length")
    bare = length is not None and not isinstance(length, dict) and searcher.get("unit") is None
    if not bare or name in NEVER_STOP or configured_length(searcher)[0] is not None:
        return None
    return (
        f"this script validates on without asking how far to train. With max_length, {name} stops trials "
        "only where their script asks for the next operation: this one trains to its own end. Loop over "
        "core_context.searcher.operations() and call op.report_completed() in the script; or give the "
        "searcher time_metric and max_time instead of max_length, if it takes them: then it goes by the "
        "validations"
    )
