"""What a custom search method has to do: :class:`SearchMethod`."""

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
    """Decides which trials there are and how long each trains.

    A runner calls one handler per event and sends the operations it returns to the experiment: all of
    one handler, or none. The order of events:

    1. ``initial_operations``, once: the search begins.
    2. For each :class:`Create`, ``on_trial_created`` once the trial exists.
    3. For each :class:`ValidateAfter`, ``on_validation_completed`` when the trial has trained that far.
       Until the next ``ValidateAfter`` the trial waits, without holding a slot.
    4. ``on_trial_exited_early`` if a trial ends otherwise, and in any case ``on_trial_closed`` last.
    5. A :class:`Shutdown`, which the method must return at some time, ends the experiment.

    Events of different trials come in any order. ``progress`` is called after each event that
    changes something but the creation of trials.

    The runner saves the state after each event (not after mere progress), before it sends the
    operations. A runner that was killed loads that state and is told again of the event only if its
    handler's result was not saved; so a method must keep all it decides by in what
    ``save_method_state`` writes, random generators included. An exception in a handler ends the runner
    with nothing of that event saved or sent: the next start calls the handler again.
    """

    @abc.abstractmethod
    def initial_operations(self, searcher_state: SearcherState) -> list[Operation]:
        """The search begins: the operations that make its first trials."""

    @abc.abstractmethod
    def on_trial_created(
        self, searcher_state: SearcherState, request_id: uuid.UUID
    ) -> list[Operation]:
        """The trial that a Create asked for exists."""

    @abc.abstractmethod
    def on_validation_completed(
        self, searcher_state: SearcherState, request_id: uuid.UUID, metric: Any, train_length: int
    ) -> list[Operation]:
        """The trial has trained to ``train_length`` units in all.

        ``metric`` is what its code gave to ``op.report_completed()``: a number as a rule (NaN and
        infinities too), any JSON value if the code gives another.
        """

    @abc.abstractmethod
    def on_trial_closed(
        self, searcher_state: SearcherState, request_id: uuid.UUID
    ) -> list[Operation]:
        """The trial is over: no process of it runs, and none ever will."""

    @abc.abstractmethod
    def on_trial_exited_early(
        self, searcher_state: SearcherState, request_id: uuid.UUID, exited_reason: ExitedReason
    ) -> list[Operation]:
        """The trial has ended before its target. ``on_trial_closed`` follows."""

    @abc.abstractmethod
    def progress(self, searcher_state: SearcherState) -> float:
        """How far the search is, 0..1."""

    def save_method_state(self, path: Path) -> None:  # noqa: B027 - may be left out
        """Writes all the method needs to go on into the directory ``path``; by default nothing."""

    def load_method_state(self, path: Path) -> None:  # noqa: B027 - may be left out
        """Reads what :meth:`save_method_state` wrote there."""

    def save(self, searcher_state: SearcherState, path: Path, *, experiment_id: int) -> None:
        """Writes ``searcher_state`` and the method's own state into the directory ``path``."""
        data = {**searcher_state.to_dict(), "experimentId": experiment_id}
        (Path(path) / STATE_FILE).write_text(json.dumps(data))
        self.save_method_state(Path(path))

    def load(self, path: Path) -> tuple[SearcherState, int]:
        """(state, experiment id) from the directory ``path``; the method's own state is taken over."""
        data = json.loads((Path(path) / STATE_FILE).read_text())
        state = SearcherState()
        state.from_dict(data)
        self.load_method_state(Path(path))
        return state, int(data["experimentId"])
