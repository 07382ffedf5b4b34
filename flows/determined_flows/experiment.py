"""The flow of one experiment: searcher events in, operations out, until the search ends.

Nothing is kept here that a ``kill -9`` could lose. The searcher's snapshot, the operations and the id of
the last event they answer are committed by the service in one transaction; a restarted flow attaches
as the new driver, loads the snapshot, makes the Prefect runs that are still missing and goes on.
A flow that was replaced gets 409 and ends without touching anything.
"""

from __future__ import annotations

import asyncio
import os
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
from determined_searchers import (
    Operation,
    Searcher,
    create_searcher,
    event_from_json,
    restore_searcher,
)
from determined_tasks.trial_runs import TrialRunFactory

from .service import open_session

POLL_SECONDS = 50.0
END_STATES = {"COMPLETED", "CANCELED", "ERROR"}


@prefect.flow(
    name="experiment",
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
    with open_session() as session:
        if experiment_id is None:
            experiment_id = await asyncio.to_thread(
                _submit, session, config, model_dir, str(flow_run_id)
            )
        driver = SearchDriver(session, experiment_id, flow_run_id)
        return await driver.run()


def _submit(
    session: Session, config: dict[str, Any] | str | None, model_dir: str | None, flow_run_id: str
) -> int:
    if config is None:
        raise ValueError("give either experiment_id or config (the experiment configuration)")
    from determined.common import context

    text = config if isinstance(config, str) else orjson.dumps(config).decode()
    answer = session.post(
        "/api/v1/experiments",
        json={
            "config": text,
            "modelDefinition": context.to_json(context.pack(Path(model_dir))) if model_dir else [],
            "activate": True,
            "flowRunId": flow_run_id,
        },
        timeout=300.0,
    )
    return int(answer["experiment"]["id"])


class SearchDriver:
    """The loop between the service's event log and the pure searcher."""

    def __init__(self, session: Session, experiment_id: int, flow_run_id: uuid.UUID) -> None:
        self.session = session
        self.experiment_id = experiment_id
        self.flow_run_id = flow_run_id
        self.driver = str(uuid.uuid4())
        self._path = f"/internal/v1/experiments/{experiment_id}/search"
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
        """Another process drives this search now: its outcome is that one's to report."""
        self._log.warning("another run drives experiment %s: %s", self.experiment_id, error)
        now = await asyncio.to_thread(self.session.get, self._path)
        if now["flow_run_id"] == str(self.flow_run_id):
            # The same run goes on in the other process. Leave without the engine's last word: any state
            # set from here would be set on the run that is alive.
            os._exit(0)
        return Cancelled(message=f"experiment {self.experiment_id} has another driver: {error}")

    async def _run(self) -> State[Any]:
        attached = await asyncio.to_thread(
            self.session.post,
            f"{self._path}/attach",
            json={"driver": self.driver, "flow_run_id": str(self.flow_run_id)},
        )
        experiment = attached["experiment"]
        async with get_client() as client:
            factory = await TrialRunFactory.open(
                client, experiment_id=self.experiment_id, flow_run_id=self.flow_run_id
            )
            async with asyncio.TaskGroup() as runs:
                for trial in attached["trials_without_run"]:
                    runs.create_task(self._create_run(factory, trial))
                try:
                    state, reason = await self._search(attached, experiment, factory, runs)
                except (errors.APIException, asyncio.CancelledError):
                    raise
                except Exception as error:
                    # A searcher that fails must not leave its trials running unattended.
                    self._log.exception("the searcher failed")
                    await self._fail(f"{type(error).__name__}: {error}")
                    state, reason = await self._wait_for_end()
        return _prefect_state(self.experiment_id, state, reason)

    async def _search(
        self,
        attached: dict[str, Any],
        experiment: dict[str, Any],
        factory: TrialRunFactory,
        runs: asyncio.TaskGroup,
    ) -> tuple[str, str | None]:
        state, reason = experiment["state"], experiment.get("reason")
        committed = attached["committed_event_id"]
        searcher: Searcher
        if attached["snapshot"] is None:
            searcher = create_searcher(experiment["config"])
            operations = searcher.initial_operations()
            committed = 0
            state = await self._commit(committed, operations, searcher, factory, runs)
        else:
            searcher = restore_searcher(experiment["config"], attached["snapshot"])
        while state not in END_STATES:
            answer = await asyncio.to_thread(
                self.session.get,
                f"{self._path}/events",
                params={
                    "driver": self.driver,
                    "after": committed,
                    "state": state,
                    "timeout_s": POLL_SECONDS,
                },
                timeout=POLL_SECONDS + 30,
            )
            state, reason = answer["state"], answer.get("reason")
            if not answer["events"]:
                continue
            operations = []
            for item in answer["events"]:
                operations += searcher.handle(event_from_json(item["event"]))
                committed = item["id"]
            state = await self._commit(committed, operations, searcher, factory, runs)
        return state, reason

    async def _commit(
        self,
        last_event_id: int,
        operations: list[Operation],
        searcher: Searcher,
        factory: TrialRunFactory,
        runs: asyncio.TaskGroup,
    ) -> str:
        answer = await asyncio.to_thread(
            self.session.post,
            f"{self._path}/commit",
            json={
                "driver": self.driver,
                "last_event_id": last_event_id,
                "operations": [operation.to_json() for operation in operations],
                "snapshot": searcher.snapshot(),
                "progress": searcher.progress(),
            },
        )
        # Not awaited here: the trial may start meanwhile, Prefect is told in order by the service.
        for trial in answer["trials"]:
            runs.create_task(self._create_run(factory, trial))
        return str(answer["state"])

    async def _create_run(self, factory: TrialRunFactory, trial: dict[str, Any]) -> None:
        run_id = await factory.create(trial)
        await asyncio.to_thread(
            self.session.post,
            f"/internal/v1/trials/{trial['trial_id']}/run",
            json={"flow_run_id": str(run_id)},
        )

    async def _fail(self, error: str) -> None:
        await asyncio.to_thread(
            self.session.post,
            f"{self._path}/fail",
            json={"driver": self.driver, "error": error},
        )

    async def _wait_for_end(self) -> tuple[str, str | None]:
        state = "STOPPING_ERROR"
        reason = None
        while state not in END_STATES:
            answer = await asyncio.to_thread(
                self.session.get,
                f"{self._path}/events",
                # Events no longer matter: only the state is waited for.
                params={
                    "driver": self.driver,
                    "after": 2**62,
                    "state": state,
                    "timeout_s": POLL_SECONDS,
                },
                timeout=POLL_SECONDS + 30,
            )
            state, reason = answer["state"], answer.get("reason")
        return state, reason


def _prefect_state(experiment_id: int, state: str, reason: str | None) -> State[Any]:
    message = f"experiment {experiment_id} {state.lower()}" + (f": {reason}" if reason else "")
    if state == "COMPLETED":
        return Completed(message=message)
    if state == "CANCELED":
        return Cancelled(message=message)
    return Failed(message=message)
