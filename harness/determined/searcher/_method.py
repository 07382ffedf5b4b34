"""The base class of custom search methods: :class:`SearchMethod`."""

from __future__ import annotations

import abc
import json
import uuid
from pathlib import Path
from typing import Any

from determined.searcher._operations import Operation
from determined.searcher._state import ExitedReason, SearcherState

STATE_FILE = "state"


class SearchMethod(abc.ABC):
    """Decides which trials to create and how long each of them trains.

    A runner calls one handler per event and sends the operations that it returns to the experiment:
    all operations of a handler, or none. The order of events:

    1. ``initial_operations``, once: the search begins.
    2. For each :class:`Create`, ``on_trial_created`` once the trial exists.
    3. For each :class:`ValidateAfter`, ``on_validation_completed`` when the trial has trained that far.
       Until the next ``ValidateAfter`` the trial waits and uses no slot.
    4. ``on_trial_exited_early`` if a trial ends early. ``on_trial_closed`` is the last event of each trial.
    5. A :class:`Shutdown`, which the method must return at some time, ends the experiment.

    Events of different trials come in any order. ``progress`` is called after each event that
    changes something but the creation of trials.

    The runner saves the state after each event (except reports of progress), before it sends the
    operations. A runner that was killed loads that state. It gets an event again only if the result of
    the event's handler was not saved. So ``save_method_state`` must write everything on which the
    method's decisions depend, random generators included. An exception in a handler ends the runner;
    nothing of that event is saved or sent, and the next start calls the handler again.
    """

    @abc.abstractmethod
    def initial_operations(self, searcher_state: SearcherState) -> list[Operation]:
        """The search starts: returns the operations that create its first trials."""

    @abc.abstractmethod
    def on_trial_created(
        self, searcher_state: SearcherState, request_id: uuid.UUID
    ) -> list[Operation]:
        """The trial of a Create operation exists."""

    @abc.abstractmethod
    def on_validation_completed(
        self, searcher_state: SearcherState, request_id: uuid.UUID, metric: Any, train_length: int
    ) -> list[Operation]:
        """The trial has trained for ``train_length`` units in total.

        ``metric`` is the value that the trial's code passed to ``op.report_completed()``: usually a
        number (also NaN or an infinity), but any JSON value is possible.
        """

    @abc.abstractmethod
    def on_trial_closed(
        self, searcher_state: SearcherState, request_id: uuid.UUID
    ) -> list[Operation]:
        """The trial has ended: none of its processes runs, and none will run again."""

    @abc.abstractmethod
    def on_trial_exited_early(
        self, searcher_state: SearcherState, request_id: uuid.UUID, exited_reason: ExitedReason
    ) -> list[Operation]:
        """The trial has ended before its target. ``on_trial_closed`` follows."""

    @abc.abstractmethod
    def progress(self, searcher_state: SearcherState) -> float:
        """The progress of the search, from 0 to 1."""

    def save_method_state(self, path: Path) -> None:  # noqa: B027 - may be left out
        """Writes the method's own state into the directory ``path``; by default nothing."""

    def load_method_state(self, path: Path) -> None:  # noqa: B027 - may be left out
        """Reads the state that :meth:`save_method_state` wrote."""

    def save(self, searcher_state: SearcherState, path: Path, *, experiment_id: int) -> None:
        """Writes ``searcher_state`` and the method's own state into the directory ``path``."""
        data = {**searcher_state.to_dict(), "experimentId": experiment_id}
        (Path(path) / STATE_FILE).write_text(json.dumps(data))
        self.save_method_state(Path(path))

    def load(self, path: Path) -> tuple[SearcherState, int]:
        """Loads the method's own state from the directory ``path``; returns (state, experiment id)."""
        data = json.loads((Path(path) / STATE_FILE).read_text())
        state = SearcherState()
        state.from_dict(data)
        self.load_method_state(Path(path))
        return state, int(data["experimentId"])
