"""The search as an experiment sees it: events in, operations out, a snapshot at any time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from determined_searchers.errors import SearcherError
from determined_searchers.events import (
    Event,
    ExitReason,
    MetricMissing,
    TrialClosed,
    TrialCreated,
    TrialExitedEarly,
    TrialProgress,
    TrialReported,
    ValidationCompleted,
)
from determined_searchers.method import BracketStanding, SearchContext, SearchMethod
from determined_searchers.methods import find_method
from determined_searchers.metrics import rank_metric
from determined_searchers.operations import (
    Close,
    Create,
    Operation,
    SetProgress,
    Shutdown,
    Stop,
    ValidateAfter,
)
from determined_searchers.settings import Form, read_form, read_length
from determined_searchers.space import Space
from determined_searchers.stream import RandomStream

SNAPSHOT_VERSION = 1


@dataclass(slots=True)
class LiveTrial:
    """A trial that was asked for and is not closed."""

    created: bool = False
    target: int | None = None  # length of the ValidateAfter not yet answered
    reached: int = 0  # longest length answered
    reported: float | None = None  # latest time of a report
    stopped: bool = False
    exited: ExitReason | None = None
    progress: float = 0.0


class OpenTrials(Mapping[str, float]):
    """Progress by trial, looked up only by methods that go by it."""

    def __init__(self, live: Mapping[str, LiveTrial]) -> None:
        self._live = live

    def __getitem__(self, request_id: str) -> float:
        trial = self._live[request_id]
        if trial.exited and trial.exited.invalid:
            raise KeyError(request_id)
        return trial.progress

    def __iter__(self) -> Iterator[str]:
        for request_id, trial in self._live.items():
            if not (trial.exited and trial.exited.invalid):
                yield request_id

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Searcher:
    """A :class:`SearchMethod` with the bookkeeping that all searches share.

    Call :meth:`initial_operations` once, then :meth:`handle` with one event after the other; carry
    out the operations in order, and save :meth:`snapshot` together with them. Made by
    :func:`create_searcher` or :func:`restore_searcher`.

    An event that was handled before changes nothing and returns no operations. So does an event of
    a trial that is closed or was never asked for: closed trials are forgotten, which keeps a
    snapshot as small as the number of trials that are open (plus the 624 words of the random
    stream, and what the method must remember). After the Shutdown every event is ignored.

    Attributes:
        form: :class:`Form`, equal to "operations" or "reports".
        trials_requested, trials_created, trials_closed: how many, replaced ones included.
        cancels, failures: how many trials exited by the user's cancel, by an error.
        shutdown: the Shutdown that was returned, or None.
    """

    def __init__(self, method: SearchMethod, context: SearchContext) -> None:
        self.form = context.form
        self.trials_requested = 0
        self.trials_created = 0
        self.trials_closed = 0
        self.cancels = 0
        self.failures = 0
        self.shutdown: Shutdown | None = None
        self._name: str = context.section["name"]
        self._smaller_is_better = context.section.get("smaller_is_better") is not False
        self._stream = context.stream
        self._method = method
        self._started = False
        self._invalid_in_a_row = 0
        self._own_progress: float | None = None
        self._live: dict[str, LiveTrial] = {}

    def initial_operations(self) -> list[Operation]:
        """The operations that begin the search."""
        if self._started:
            raise RuntimeError("initial_operations is called once in a search's life")
        self._started = True
        return self._account(self._method.initial_operations())

    def handle(self, event: Event) -> list[Operation]:
        """The operations that follow from ``event``. Raises SearcherError when the search cannot go on."""
        if not self._started:
            raise RuntimeError("initial_operations comes before the first event")
        trial = self._live.get(event.request_id)
        if trial is None or self.shutdown is not None:
            return []
        operations = _HANDLERS[type(event)](self, trial, event)
        if operations or self.trials_closed == self.trials_requested:
            return self._account(operations)
        return operations

    def progress(self) -> float:
        """The finished share of the search, 0..1."""
        value = self._own_progress
        if value is None:
            value = self._method.progress(OpenTrials(self._live))
        return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0

    def standings(self) -> list[BracketStanding]:
        """The brackets of rungs, with the trials measured in each rung; none for searches without rungs."""
        return self._method.standings()

    def snapshot(self) -> dict[str, Any]:
        """Everything :func:`restore_searcher` needs, as JSON."""
        return {
            "version": SNAPSHOT_VERSION,
            "name": self._name,
            "form": self.form.value,
            "started": self._started,
            "trials_requested": self.trials_requested,
            "trials_created": self.trials_created,
            "trials_closed": self.trials_closed,
            "cancels": self.cancels,
            "failures": self.failures,
            "invalid_in_a_row": self._invalid_in_a_row,
            "own_progress": self._own_progress,
            "shutdown": self.shutdown and self.shutdown.to_json(),
            "live_trials": [
                {
                    "request_id": request_id,
                    "created": trial.created,
                    "target": trial.target,
                    "reached": trial.reached,
                    "reported": trial.reported,
                    "stopped": trial.stopped,
                    "exited": trial.exited and trial.exited.value,
                    "progress": trial.progress,
                }
                for request_id, trial in self._live.items()
            ],
            "rand": self._stream.state(),
            "method_state": self._method.state(),
        }

    def _load(self, snapshot: Mapping[str, Any]) -> None:
        found = tuple(snapshot.get(key) for key in ("version", "name", "form"))
        if found != (SNAPSHOT_VERSION, self._name, self.form):
            raise SearcherError(
                f"the saved search (version {found[0]}, searcher {found[1]}, form {found[2]}) "
                f"does not belong to this configuration (version {SNAPSHOT_VERSION}, searcher "
                f"{self._name}, form {self.form})"
            )
        self._started = snapshot["started"]
        self.trials_requested = snapshot["trials_requested"]
        self.trials_created = snapshot["trials_created"]
        self.trials_closed = snapshot["trials_closed"]
        self.cancels = snapshot["cancels"]
        self.failures = snapshot["failures"]
        self._invalid_in_a_row = snapshot["invalid_in_a_row"]
        self._own_progress = _float(snapshot["own_progress"])
        end = snapshot["shutdown"]
        self.shutdown = end and Shutdown(cancel=end["cancel"], failure=end["failure"])
        self._live = {
            saved["request_id"]: LiveTrial(
                created=saved["created"],
                target=saved["target"],
                reached=saved["reached"],
                reported=_float(saved["reported"]),
                stopped=saved["stopped"],
                exited=saved["exited"] and ExitReason(saved["exited"]),
                progress=float(saved["progress"]),
            )
            for saved in snapshot["live_trials"]
        }
        self._stream.load(snapshot["rand"])
        self._method.load(snapshot["method_state"])

    def _created(self, trial: LiveTrial, event: TrialCreated) -> list[Operation]:
        if trial.created:
            return []
        trial.created = True
        self.trials_created += 1
        return self._method.trial_created(event.request_id)

    def _validated(self, trial: LiveTrial, event: ValidationCompleted) -> list[Operation]:
        if trial.exited:
            return []
        if event.length != trial.target:
            if event.length <= trial.reached:
                return []  # a repeated report
            expected = "nothing" if trial.target is None else f"length {trial.target}"
            raise SearcherError(
                f"trial {event.request_id} was expected to report {expected}, but reported length "
                f"{event.length}"
            )
        trial.target = None
        trial.reached = max(trial.reached, event.length)
        self._invalid_in_a_row = 0
        metric = self._metric(event.metric)
        return self._method.validation_completed(event.request_id, metric, event.length)

    def _reported(self, trial: LiveTrial, event: TrialReported) -> list[Operation]:
        if trial.exited or trial.stopped:
            return []
        if event.time is not None:
            if trial.reported is not None and event.time <= trial.reported:
                return []  # a repeated report, or a restarted trial on its way back
            trial.reported = float(event.time)
        self._invalid_in_a_row = 0
        return self._method.trial_reported(
            event.request_id, event.time, self._metric(event.metric), event.step
        )

    def _missing(self, trial: LiveTrial, event: MetricMissing) -> list[Operation]:
        if self._method.needs_metric and self.form is Form.REPORTS:
            raise SearcherError(
                f"{event.words}; the {self._name} searcher stops trials by this metric and cannot go on "
                "without it: report all metrics of a validation at once"
            )
        return []

    def _progressed(self, trial: LiveTrial, event: TrialProgress) -> list[Operation]:
        if trial.exited or not math.isfinite(event.progress):
            return []
        # Progress never falls: a restarted trial repeats its work, and events may be repeated.
        trial.progress = max(trial.progress, float(event.progress))
        return self._method.trial_progress(event.request_id, event.progress)

    def _exited(self, trial: LiveTrial, event: TrialExitedEarly) -> list[Operation]:
        if trial.exited:
            return []
        trial.exited = event.reason
        trial.target = None
        if event.reason.invalid:
            self._invalid_in_a_row += 1
            limit = self._method.invalid_limit
            if limit is not None and self._invalid_in_a_row >= limit:
                raise SearcherError(
                    f"{limit} trials in a row called their hyperparameters invalid, with none "
                    "valid between them, so the search is given up. Check that points of the "
                    "hyperparameter space pass the training code's checks"
                )
        elif event.reason is ExitReason.USER_CANCELED:
            self.cancels += 1
        elif event.reason is ExitReason.ERRORED:
            self.failures += 1
        return self._method.trial_exited(event.request_id, event.reason)

    def _closed(self, trial: LiveTrial, event: TrialClosed) -> list[Operation]:
        del self._live[event.request_id]
        self.trials_closed += 1
        if not (trial.exited and trial.exited.invalid):
            self._invalid_in_a_row = 0
        return self._method.trial_closed(event.request_id, trial.exited)

    def _metric(self, metric: Any) -> Any:
        if self._method.raw_metrics:
            return metric
        return rank_metric(metric, self._smaller_is_better)

    def _find(self, operation: ValidateAfter | Close | Stop) -> LiveTrial:
        trial = self._live.get(operation.request_id)
        if trial is None:
            raise SearcherError(
                f"the {self._name} searcher asked to {operation.type} trial "
                f"{operation.request_id}, which is closed or was never created"
            )
        return trial

    def _account(self, operations: list[Operation]) -> list[Operation]:
        """Update the bookkeeping for ``operations``, and end a search that is done."""
        for operation in operations:
            if isinstance(operation, Create):
                self.trials_requested += 1
                self._live[operation.request_id] = LiveTrial()
            elif isinstance(operation, ValidateAfter):
                self._find(operation).target = operation.length
            elif isinstance(operation, Close):
                self._find(operation)
            elif isinstance(operation, Stop):
                self._find(operation).stopped = True
            elif isinstance(operation, SetProgress):
                self._own_progress = float(operation.progress)
            else:
                self.shutdown = operation
        done = self.trials_requested == self.trials_closed
        if done and self.shutdown is None and not self._method.ends_itself:
            requested = self.trials_requested
            self.shutdown = Shutdown(
                cancel=0 < requested <= self.cancels, failure=0 < requested <= self.failures
            )
            return [*operations, self.shutdown]
        return operations


_HANDLERS: dict[type[Event], Callable[[Searcher, LiveTrial, Any], list[Operation]]] = {
    TrialCreated: Searcher._created,
    ValidationCompleted: Searcher._validated,
    TrialReported: Searcher._reported,
    MetricMissing: Searcher._missing,
    TrialProgress: Searcher._progressed,
    TrialExitedEarly: Searcher._exited,
    TrialClosed: Searcher._closed,
}


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def create_searcher(config: Mapping[str, Any]) -> Searcher:
    """The search of a complete experiment configuration, at its beginning.

    Reads ``searcher``, ``hyperparameters`` and ``reproducibility.experiment_seed`` of ``config``.
    Raises SearcherError for a configuration that describes no search.
    """
    section = config.get("searcher")
    if not isinstance(section, Mapping):
        raise SearcherError("searcher: the experiment configuration has no such section")
    method_class = find_method(section.get("name"))
    seed = (config.get("reproducibility") or {}).get("experiment_seed")
    if seed is None:
        raise SearcherError("reproducibility.experiment_seed: the searcher needs this field")
    form = read_form(section)
    context = SearchContext(
        section=section,
        space=Space(config.get("hyperparameters")),
        stream=RandomStream(seed),
        form=form,
        max_length=read_length(section) if form is Form.OPERATIONS else None,
    )
    return Searcher(method_class.from_config(context), context)


def restore_searcher(config: Mapping[str, Any], snapshot: Mapping[str, Any]) -> Searcher:
    """The search of ``config`` where :meth:`Searcher.snapshot` left it: same future, same snapshot.

    Raises SearcherError when the snapshot is of another search method or form.
    """
    searcher = create_searcher(config)
    searcher._load(snapshot)
    return searcher
