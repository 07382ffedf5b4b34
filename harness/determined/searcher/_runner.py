"""The loop of every search runner, which answers each event with operations exactly once."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from determined.common.api import Session, errors
from determined.common.api.patience import OUTAGE_RETRIES
from determined.experimental import client
from determined.experimental._determined import Determined
from determined.experimental._experiment_verbs import Config
from determined.searcher._events import SearcherEvent
from determined.searcher._method import SearchMethod
from determined.searcher._operations import Operation, Progress
from determined.searcher._state import ExitedReason, SearcherState

logger = logging.getLogger("determined.searcher")

# How many times in a row an answer may get lost or meet a fault of the service.
_MAX_LOST = 10


class SearchRunner:
    """Runs a search method against the event queue of an experiment.

    The service keeps an event in the queue until it gets the answer, and accepts one answer to each
    event. The runner saves an answer before it sends it. If the runner does not know whether the answer
    arrived (it was killed, or the network failed), it looks into the queue: if the event is still there,
    it sends the saved answer again, unchanged.

    Subclasses decide where the state is kept (:meth:`save_state`).
    """

    poll_seconds = 60.0
    """The most seconds that a request for events waits at the service."""

    def __init__(self, search_method: SearchMethod) -> None:
        self.search_method = search_method
        self.state = SearcherState()
        self._answer: Sequence[Operation] | None = None
        self._lost = 0
        self._paused = False

    def run_experiment(
        self,
        experiment_id: int,
        session: Session,
        prior_operations: Sequence[Operation] | None,
        sleep_time: float = 1.0,
    ) -> None:
        """Answers events until the experiment has ended, or the runner is interrupted.

        Args:
            experiment_id: an experiment with ``searcher.name: custom``.
            session: a login at its service.
            prior_operations: the answer to the event ``state.last_event_id``, if an earlier process
                saved it and may not have sent it.
            sleep_time: seconds between requests that the service answers at once.

        Raises the exceptions of the search method's handlers, with a note on how to continue.
        """
        self._answer = prior_operations
        try:
            while not self._interrupted():
                asked = time.monotonic()
                events = self.get_events(session, experiment_id)
                if not self._answer_events(session, experiment_id, events):
                    return
                waited = time.monotonic() - asked
                if self._paused or self._lost or (not events and waited < sleep_time):
                    time.sleep(sleep_time)
        except KeyboardInterrupt:
            logger.warning(
                "search runner interrupted after event %s of experiment %s; %s",
                self.state.last_event_id,
                experiment_id,
                self._how_to_go_on(),
            )

    def _answer_events(
        self, session: Session, experiment_id: int, events: Iterable[SearcherEvent]
    ) -> bool:
        """Returns False if the experiment has ended; stops early if an answer may be lost."""
        for event in events:
            if event.kind == "experimentInactive":
                return self._heed(event.experiment_state)
            self._paused = False
            again = event.id <= self.state.last_event_id and self._answer is not None
            if again:
                logger.info("Resubmitting operations for event.id=%s", event.id)
            else:
                self._answer = self._decide_and_save(experiment_id, event)
            assert self._answer is not None
            if not self._send(session, experiment_id, event, self._answer, again):
                break
            if self._interrupted():
                break
        return True

    def _heed(self, state: str) -> bool:
        """Handles an experiment that is paused (returns True: keep waiting) or has ended (False)."""
        if state == "PAUSED":
            if not self._paused:
                self._show_experiment_paused_msg()
            self._paused = True
            return True
        logger.info("experiment %s is %s", self.state.experiment_id, state)
        self.state.experiment_completed = state == "COMPLETED"
        self.state.experiment_failed = state == "ERROR"
        return False

    def _decide_and_save(self, experiment_id: int, event: SearcherEvent) -> list[Operation]:
        try:
            logger.info("event %s", event)
            operations = self._get_operations(event)
            self.state.last_event_id = event.id
            self.save_state(experiment_id, operations)
        except Exception as error:
            error.add_note(
                f"The exception occurred in the answer to event {event} of experiment {experiment_id}. "
                f"No operation was sent; {self._how_to_go_on()}"
            )
            raise
        return operations

    def _get_operations(self, event: SearcherEvent) -> list[Operation]:
        state, method = self.state, self.search_method
        match event.kind:
            case "initialOperations":
                return _listed("initial_operations", method.initial_operations(state))
            case "trialCreated":
                state.trials_created.add(event.request_id)
                state.trial_progress[event.request_id] = 0.0
                made = method.on_trial_created(state, event.request_id)
                return _listed("on_trial_created", made)
            case "trialClosed":
                state.trials_closed.add(event.request_id)
                name, made = "on_trial_closed", method.on_trial_closed(state, event.request_id)
            case "trialExitedEarly":
                reason = event.exited_reason
                if reason is ExitedReason.INVALID_HP:
                    state.trial_progress.pop(event.request_id, None)
                elif reason is ExitedReason.ERRORED:
                    state.failures.add(event.request_id)
                name = "on_trial_exited_early"
                made = method.on_trial_exited_early(state, event.request_id, exited_reason=reason)
            case "validationCompleted":
                length = int(event.fields["validateAfterLength"])
                name = "on_validation_completed"
                made = method.on_validation_completed(state, event.request_id, event.metric, length)
            case "trialProgress":
                state.trial_progress[event.request_id] = float(event.fields["partialUnits"])
                name, made = "progress", []
            case _:
                raise RuntimeError(f"unknown event {event}; is this client older than the service?")
        return [*_listed(name, made), Progress(method.progress(state))]

    def _send(
        self,
        session: Session,
        experiment_id: int,
        event: SearcherEvent,
        operations: Sequence[Operation],
        again: bool,
    ) -> bool:
        """Returns False if it is not known whether the answer arrived; the queue will show it."""
        try:
            self.post_operations(session, experiment_id, event, operations)
        except errors.APIException as error:
            if again and isinstance(error, errors.NotFoundException):
                return True  # it had arrived
            faulty = error.status_code is None or error.status_code >= 500
            if faulty and self._lost < _MAX_LOST:
                logger.warning("the answer to event %s may be lost: %s", event.id, error)
                self._lost += 1
                return False
            if error.status_code == 400:
                self._forget_refused(experiment_id)
            error.add_note(
                f"The error concerns the answer to event {event} of experiment {experiment_id}: "
                f"{list(operations)}. {self._how_to_go_on().capitalize()}"
            )
            raise
        self._lost = 0
        return True

    def post_operations(
        self,
        session: Session,
        experiment_id: int,
        event: SearcherEvent,
        operations: Sequence[Operation],
    ) -> None:
        """Sends the answer to ``event``, once. Raises the errors of :class:`Session`."""
        body = {
            "experimentId": experiment_id,
            "searcherOperations": [operation.to_json() for operation in operations],
            "triggeredByEvent": event.to_json(),
        }
        path = f"/api/v1/experiments/{experiment_id}/searcher_operations"
        # Not repeated: if the reply to the first request got lost, a second request would be wrong.
        answer = session.post(path, json=body, max_retries=0)
        for problem in answer.get("skipped") or []:
            logger.warning(
                "an operation of the answer to event %s was left out: %s", event.id, problem
            )

    def get_events(self, session: Session, experiment_id: int) -> list[SearcherEvent]:
        """The events that wait for an answer; waits for the first one, and returns [] after a while."""
        answer = session.get(
            f"/api/v1/experiments/{experiment_id}/searcher_events",
            params={"timeout_s": self.poll_seconds},
            timeout=self.poll_seconds + 30,
            max_retries=OUTAGE_RETRIES,
        )
        return [SearcherEvent.from_json(event) for event in answer.get("searcherEvents") or []]

    def save_state(self, experiment_id: int, operations: Sequence[Operation]) -> None:
        """Saves the state and ``operations``, the answer to the event ``state.last_event_id``."""

    def _forget_refused(self, experiment_id: int) -> None:
        """Goes back to the state before the last answer, if possible, because the service refused it."""

    def _interrupted(self) -> bool:
        """True if the runner should stop now."""
        return False

    def _how_to_go_on(self) -> str:
        return "the experiment waits until its search method runs again"

    def _show_experiment_paused_msg(self) -> None:
        logger.warning(
            "experiment %s is paused; the search continues when the experiment is activated",
            self.state.experiment_id,
        )


def _listed(handler: str, made: Any) -> list[Operation]:
    """A handler's result as a list. Raises TypeError for anything but operations."""
    if not isinstance(made, (list, tuple)):
        raise TypeError(f"{handler} must return a list of operations, but returned {made!r}")
    for item in made:
        if not isinstance(item, Operation):
            raise TypeError(f"{handler} must return a list of operations, but it holds {item!r}")
    return list(made)


def login(session: Session | None) -> Determined:
    """The login of ``session``; without a session, that of ``client``."""
    return client._logged_in() if session is None else Determined._with_session(session)


def create_experiment(
    determined: Determined,
    exp_config: Config,
    model_dir: str | Path | None,
    includes: Iterable[str | Path] | None,
) -> int:
    """Submits the experiment of a custom search. Raises ValueError for another searcher."""
    from determined.experimental import _submission

    searcher = _submission.read_config(exp_config).document.data.get("searcher")
    name = searcher.get("name") if isinstance(searcher, dict) else None
    if name not in (None, "custom"):
        raise ValueError(
            f"searcher.name: found {name!r}, but a search runner needs 'custom'; the cluster itself "
            f"runs the other searchers (`det flow run`)"
        )
    made = determined.create_experiment(exp_config, model_dir or Path.cwd(), includes)
    logger.info("Created experiment %s", made.id)
    return made.id
