"""The flow of one experiment: searcher events in, operations out, until the search ends.

Nothing is kept here that a ``kill -9`` could lose. The operations and the id of the last event they
answer are committed by the service in one transaction, now and then with the searcher's snapshot; a
restarted flow attaches as the new driver, replays the committed events after the snapshot, makes
the Prefect runs that are still missing and goes on. A flow that was replaced gets 409 and ends
without touching anything.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from pathlib import Path
from typing import Any

import orjson
import prefect
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import flow_run as current_flow_run
from prefect.states import Cancelled, Completed, Failed

from determined.common.api import Session, errors
from determined.common.api.tasks import warnings_of
from determined.common.wire import paths, states
from determined.common.wire.message import Message, WireError
from determined.common.wire.prefect import EXPERIMENT_FLOW
from determined.common.wire.search import (
    Attached,
    Attachment,
    Committed,
    Driven,
    Events,
    SearchFailure,
)
from determined.common.wire.times import DRIVER_POLL_S
from determined_searchers import Operation, SearcherError, ValidationCompleted
from determined_searchers.settings import is_custom

from .custom_search import follow_custom_search
from .recorded_search import RecordedSearch
from .service import open_session
from .trial_runs import TrialRuns

QUIET_SECONDS = 2.0


@prefect.flow(
    name=EXPERIMENT_FLOW,
    flow_run_name=None,
    description="One experiment: its searcher makes a subflow per trial.",
    persist_result=False,
    validate_parameters=False,
)
async def run_experiment(
    experiment_id: int | None = None,
    config: dict[str, Any] | str | None = None,
    model_dir: str | None = None,
) -> State[Any]:
    """Drives an experiment to its end and takes its outcome as the run's state.

    Args:
        experiment_id: an experiment that was submitted to the service (by `det` or the SDK).
        config: instead of it, an experiment configuration (a mapping or YAML text): the run
            submits it first. This is what "Custom run" in Prefect's UI uses.
        model_dir: with ``config``, the model directory, a path on the agent's machine.
    """
    flow_run_id = uuid.UUID(str(current_flow_run.get_id()))
    if experiment_id is None:
        number, token = await asyncio.to_thread(_submit, config, model_dir, str(flow_run_id))
    else:
        number, token = experiment_id, ""
    with open_session(token) as session:
        driver = SearchDriver(session, number, flow_run_id)
        return await driver.run()


def _submit(
    config: dict[str, Any] | str | None, model_dir: str | None, flow_run_id: str
) -> tuple[int, str]:
    """The experiment's id, and the token for it, if the run had one for its submission alone."""
    if config is None:
        raise ValueError("give either experiment_id or config (the experiment configuration)")
    from determined.common import context

    text = config if isinstance(config, str) else orjson.dumps(config).decode()
    _warn_of_secrets(text)
    files = context.to_json(context.pack(Path(model_dir))) if model_dir else []
    with open_session() as session:
        answer = session.post(
            "/api/v1/experiments",
            json={
                "config": text,
                "modelDefinition": files,
                "activate": True,
                "flowRunId": flow_run_id,
            },
            timeout=300.0,
        )
    for warning in warnings_of(answer):
        get_run_logger().warning("%s", warning)
    return int(answer["experiment"]["id"]), answer.get("runToken", "")


def _warn_of_secrets(text: str) -> None:
    from determined import expconf

    try:
        found = expconf.secret_values(expconf.load_yaml(text).data)
    except (expconf.ConfigError, AttributeError):
        return  # the service reports the mistake
    if found:
        get_run_logger().warning(
            "the configuration holds secrets (%d), and Prefect keeps and shows the parameters of its runs: "
            "submit it by `det experiment create` instead, and replace these secrets",
            len(found),
        )


class SearchDriver:
    """The loop between the service's event log and the pure searcher."""

    def __init__(self, session: Session, experiment_id: int, flow_run_id: uuid.UUID) -> None:
        self.session = session
        self.experiment_id = experiment_id
        self.flow_run_id = flow_run_id
        self.driver = uuid.uuid4()
        self._log = get_run_logger()

    async def run(self) -> State[Any]:
        try:
            return await self._run()
        except errors.ConflictException as error:
            return await self._replaced(error)
        except BaseExceptionGroup as group:
            conflict = group.subgroup(errors.ConflictException)
            if conflict is None:
                raise
        return await self._replaced(conflict)

    async def _replaced(self, error: BaseException) -> State[Any]:
        """Another process drives this search now, and that process reports the outcome."""
        self._log.warning("another run drives experiment %s: %s", self.experiment_id, error)
        path = paths.SEARCH.format(experiment_id=self.experiment_id)
        now = Driven.from_json(await asyncio.to_thread(self.session.get, path))
        if now.flow_run_id == self.flow_run_id:
            # The same run goes on in the other process. Leave without the engine's last word: any state
            # set from here would be set on the run that is alive.
            os._exit(0)
        return Cancelled(message=f"experiment {self.experiment_id} has another driver: {error}")

    async def _run(self) -> State[Any]:
        me = Attachment(self.driver, self.flow_run_id)
        attached = Attached.from_json(await self._post(paths.ATTACH, me))
        async with get_client() as client, asyncio.TaskGroup() as group:
            runs = TrialRuns(
                self.session,
                client,
                group,
                experiment_id=self.experiment_id,
                flow_run_id=self.flow_run_id,
                owner=attached.experiment.owner,
            )
            runs.make(attached.trials_without_run)
            try:
                state, reason = await self._search(attached, runs)
            except Exception as error:
                if isinstance(error, errors.APIException) and error.status_code != 400:
                    raise
                if isinstance(error, WireError):  # the service is of another release
                    raise
                # A searcher that fails must not leave its trials running unattended; nor must one
                # whose operations the service refuses.
                self._log.exception("the searcher failed")
                await self._fail(_in_words(error))
                state, reason = await self._wait_for_end()
        if state == states.ERROR:
            self._log.error("experiment %s ended in error: %s", self.experiment_id, reason)
        return _prefect_state(self.experiment_id, state, reason)

    async def _search(self, attached: Attached, runs: TrialRuns) -> tuple[str, str | None]:
        experiment = attached.experiment
        state, reason = experiment.state, experiment.reason
        if state in states.ENDED:
            return state, reason
        if is_custom(experiment.config["searcher"]):
            return await follow_custom_search(
                self.session, self.experiment_id, self.driver, runs.create
            )
        search = await self._restore(attached)
        if search.last_event_id < 0:
            # Stored by an older service, which left the beginning to the flow.
            state = await self._commit(search, search.begin(), runs)
        committed_at = time.monotonic()
        while state not in states.ENDED:
            answer = await self._events(search.last_event_id, state, DRIVER_POLL_S)
            state, reason, events = answer.state, answer.reason, answer.events
            operations = search.handle(events)
            # A commit that changes only the progress, and for which no trial waits, can be delayed.
            waited_for = any(item.event["type"] == ValidationCompleted.type for item in events)
            now = time.monotonic()
            if operations or waited_for or (events and now - committed_at >= QUIET_SECONDS):
                state = await self._commit(search, operations, runs)
                committed_at = now
                if state in states.ENDED:
                    # By this commit, and the reason above is of the time before it.
                    return await self._wait_for_end()
        return state, reason

    async def _restore(self, attached: Attached) -> RecordedSearch:
        """The search after the last committed event; without a commit, the search at its beginning."""
        search = RecordedSearch(
            attached.experiment.config, attached.snapshot, attached.snapshot_event_id
        )
        committed = attached.committed_event_id
        if search.last_event_id < 0 <= committed:
            search.begin()
        while search.last_event_id < committed:
            answer = await self._events(search.last_event_id, None, 0.0)
            # Events after the commit are still unanswered, so their operations must not be dropped.
            known = [item for item in answer.events if item.id <= committed]
            if not known:
                raise SearcherError(
                    f"events after {search.last_event_id} are gone, but the search was committed "
                    f"up to event {committed}"
                )
            search.replay(known)
        search.check(attached.operations_digest)
        return search

    async def _events(self, after: int, state: str | None, timeout_s: float) -> Events:
        """Events after the id ``after``; waits for one, or until the state is not ``state``."""
        params = {"driver": str(self.driver), "after": after, "timeout_s": timeout_s}
        if state is not None:
            params["state"] = state
        path = paths.EVENTS.format(experiment_id=self.experiment_id)
        answer = await asyncio.to_thread(
            self.session.get, path, params=params, timeout=timeout_s + 30
        )
        return Events.from_json(answer)

    async def _commit(
        self, search: RecordedSearch, operations: list[Operation], runs: TrialRuns
    ) -> str:
        commit = search.commit(self.driver, operations)
        answer = Committed.from_json(await self._post(paths.COMMIT, commit))
        # The trial may start meanwhile: Prefect is told in order by the service.
        runs.make(answer.trials)
        return answer.state

    async def _fail(self, error: str) -> None:
        await self._post(paths.FAIL, SearchFailure(self.driver, error))

    async def _post(self, where: str, message: Message) -> Any:
        path = where.format(experiment_id=self.experiment_id)
        return await asyncio.to_thread(self.session.post, path, json=message.to_json())

    async def _wait_for_end(self) -> tuple[str, str | None]:
        state = states.STOPPING_ERROR
        reason = None
        while state not in states.ENDED:
            # Events no longer matter: only the state is waited for.
            answer = await self._events(2**62, state, DRIVER_POLL_S)
            state, reason = answer.state, answer.reason
        return state, reason


def _in_words(error: Exception) -> str:
    # These speak to the person who wrote the configuration.
    if isinstance(error, (SearcherError, errors.APIException)):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _prefect_state(experiment_id: int, state: str, reason: str | None) -> State[Any]:
    message = f"experiment {experiment_id} {state.lower()}" + (f": {reason}" if reason else "")
    if state == states.COMPLETED:
        return Completed(message=message)
    if state == states.CANCELED:
        return Cancelled(message=message)
    return Failed(message=message)
