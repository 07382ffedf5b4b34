"""Prefect's half of the agent: an online worker, its flow runs, our deployments.

Prefect's own loop would end the process after a few minutes without a server, so the loop is here. It
polls slowly; the service says when to look at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx

from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.fork_server import ForkServer, ForkServerError
from determined_deployments.agent.outage import Outage
from determined_deployments.agent.processes import Child, watch
from determined_deployments.agent.relaunches import Relaunches
from determined_deployments.agent.zygote import ROOT
from determined_tasks.supervision import ProcessName

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State

    from determined_deployments.agent.worker import (
        DeterminedProcessWorker,
        ProcessJobConfiguration,
    )

logger = logging.getLogger(__name__)

FLOW = "flow"
POLL_SECONDS = 15.0
SYNC_SECONDS = 30.0
RETRY_SECONDS = (0.3, 10.0)
TERMINATE_SECONDS = 3.0

RUN_FLOW_RUN = "determined_deployments.agent.flow_run:run_flow_run"
REGISTER = "determined_deployments.deploy:register_in_fork"
EXPERIMENT_FLOW = "determined_flows.experiment.run_experiment"


class PrefectSide:
    """:meth:`run` for ever; :meth:`poll_now` from anywhere; :meth:`stop` before the end."""

    def __init__(self, config: AgentConfig, forks: ForkServer) -> None:
        self._config = config
        self._forks = forks
        self._outage = Outage("Prefect", logger)
        self._poll = asyncio.Event()
        self._runs: dict[UUID, Child] = {}
        self._relaunches = Relaunches()
        self._resumable: set[UUID] = set()
        """Runs that lose nothing when they are killed, and go on when they are started again."""
        self._cancelling: set[UUID] = set()
        self._stopping: set[UUID] = set()
        self._closing = False
        self._worker: DeterminedProcessWorker | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._folder = config.work_dir / "flow_runs"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def poll_now(self) -> None:
        """A run waits in the work pool."""
        self._poll.set()

    async def run(self) -> None:
        # Prefect's import takes a second, and the service is not to wait for it.
        worker_module = await asyncio.to_thread(_import_worker)
        self._adopt()
        delay, longest = RETRY_SECONDS
        while True:
            worker = worker_module.DeterminedProcessWorker(
                work_pool_name=self._config.resource_pool,
                name=self._config.agent_id,
                # Nothing is started before its time: the next poll is soon enough.
                prefetch_seconds=POLL_SECONDS,
                heartbeat_interval_seconds=int(SYNC_SECONDS),
            )
            worker.launcher = self._launch
            worker.is_stopping = self._stopping.__contains__
            worker.goes_on = self._goes_on
            try:
                async with worker:
                    self._worker = worker
                    await self._serve(worker)
            except Exception as error:
                self._outage.failed(error)
            finally:
                self._worker = None
            await asyncio.sleep(delay)
            delay = min(delay * 2, longest)

    async def _serve(self, worker: DeterminedProcessWorker) -> None:
        delay, longest = RETRY_SECONDS
        synced = registered = False
        next_sync = 0.0
        while True:
            wait = POLL_SECONDS
            try:
                if time.monotonic() >= next_sync:
                    await worker.sync_with_backend()
                    synced = True
                    next_sync = time.monotonic() + SYNC_SECONDS
                if synced and not registered:
                    registered = await self._register_deployments()
                self._poll.clear()
                await worker.get_and_submit_flow_runs()
                await self._check_cancelling(worker)
                delay = RETRY_SECONDS[0]
                self._outage.over()
                if not registered:
                    wait = longest
            except httpx.HTTPError as error:
                self._outage.failed(error or type(error).__name__)
                wait = delay
                delay = min(delay * 2, longest)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._poll.wait()

    async def _register_deployments(self) -> bool:
        child = await self._forks.fork([FLOW, ROOT], REGISTER, {})
        if await child.ended == 0:
            return True
        logger.warning("the deployments could not be registered; trying again")
        return False

    async def _launch(self, flow_run: FlowRun, configuration: ProcessJobConfiguration) -> Child:
        from determined_deployments.agent.worker import identify, launch_command

        configuration.env.update(
            {
                "DET_MASTER": self._config.master_url,
                "DET_AGENT_TOKEN": self._config.agent_token.get_secret_value(),
                "DET_AGENT_ID": self._config.agent_id,
                "DET_WORK_DIR": str(self._config.work_dir),
            }
        )
        if configuration.entrypoint is None:
            child = await launch_command(flow_run, configuration)
        else:
            order = {
                "flow_run_id": str(flow_run.id),
                "entrypoint": configuration.entrypoint,
                "directory": configuration.directory,
                "env": configuration.env,
            }
            try:
                child = await self._forks.fork([FLOW, ROOT], RUN_FLOW_RUN, order)
            except ForkServerError:
                child = await self._forks.fork([FLOW, ROOT], RUN_FLOW_RUN, order)
        resumable = configuration.entrypoint == EXPERIMENT_FLOW
        self._keep(flow_run.id, child, resumable, configuration.identifier or identify(child))
        if resumable:
            self._relaunches.started(flow_run.id)
        return child

    def _goes_on(self, flow_run_id: UUID, status: int | None) -> bool:
        """Whether a run whose process has ended is started again at once."""
        due = self._relaunches.is_due(flow_run_id, status)
        if not due or self._closing or flow_run_id in self._stopping:
            return False
        logger.warning("flow run %s was killed (%s): starting it again", flow_run_id, status)
        return True

    def _keep(self, flow_run_id: UUID, child: Child, resumable: bool, identifier: str) -> None:
        self._runs[flow_run_id] = child
        if resumable:
            self._resumable.add(flow_run_id)
        path = self._folder / f"{flow_run_id}.json"
        if child.name is not None:
            record = {
                "pid": child.pid,
                "started": child.name.started,
                "resumable": resumable,
                "identifier": identifier,
            }
            path.write_text(json.dumps(record))

        def ended(future: asyncio.Future[int | None]) -> None:
            self._runs.pop(flow_run_id, None)
            self._resumable.discard(flow_run_id)
            path.unlink(missing_ok=True)

        child.ended.add_done_callback(ended)

    def _adopt(self) -> None:
        """Flow runs that an earlier agent process started and that still run."""
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                data = json.loads(path.read_text())
                child = Child(data["pid"], ProcessName(data["pid"], data["started"]))
                flow_run_id = UUID(path.stem)
                self._keep(flow_run_id, child, data["resumable"], data["identifier"])
                self._spawn(
                    self._follow_adopted(flow_run_id, child, data["resumable"], data["identifier"])
                )

    async def _follow_adopted(
        self, flow_run_id: UUID, child: Child, resumable: bool, identifier: str
    ) -> None:
        """Puts the run back into the pool when its process has ended unseen, or ends it as crashed."""
        from prefect.states import Crashed, Scheduled

        await watch(child)

        def decide(flow_run: FlowRun) -> State | None:
            state = flow_run.state
            # What is being cancelled is the service's: it watches the run, and cancels the experiment.
            ended = _is_final(state) or (resumable and state is not None and state.is_cancelling())
            if ended or flow_run.infrastructure_pid != identifier:  # another process runs it by now
                return None
            make: Any = Scheduled if resumable else Crashed
            return make(message="its process ended while the agent was away")

        delay, longest = RETRY_SECONDS
        # After a power cut Prefect may be away for longer than the agent.
        while not (self._closing or await self._set_state(flow_run_id, decide)):
            await asyncio.sleep(delay)
            delay = min(delay * 2, longest)
        self.poll_now()

    async def _check_cancelling(self, worker: DeterminedProcessWorker) -> None:
        # An experiment's run ends by itself: the service, which watches too, cancels the experiment, and
        # the run waits for its trials to end in good order.
        ids = list(self._runs.keys() - self._resumable - self._cancelling)
        if not ids:
            return
        from prefect.client.schemas.filters import (
            FlowRunFilter,
            FlowRunFilterId,
            FlowRunFilterState,
            FlowRunFilterStateType,
        )
        from prefect.client.schemas.objects import StateType
        from prefect.client.schemas.sorting import FlowRunSort

        found = await worker.client.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                id=FlowRunFilterId(any_=ids),
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING])),
            ),
            # With FastAPI 0.151 and later, Prefect's server refuses the nulls its client sends.
            sort=FlowRunSort.ID_DESC,
            limit=100,
        )
        for flow_run in found:
            self._cancelling.add(flow_run.id)
            self._spawn(self._cancel(flow_run))

    async def _cancel(self, flow_run: FlowRun) -> None:
        """Somebody cancelled the run in Prefect: ends its process."""
        from prefect.states import Cancelled

        child = self._runs.get(flow_run.id)
        self._stopping.add(flow_run.id)
        if child is not None:
            await _end(child)
        cancelled: State = Cancelled(message="cancelled in Prefect")
        await self._set_state(flow_run.id, lambda now: None if _is_final(now.state) else cancelled)
        self._stopping.discard(flow_run.id)
        self._cancelling.discard(flow_run.id)

    async def _set_state(
        self, flow_run_id: UUID, decide: Callable[[FlowRun], State | None]
    ) -> bool:
        """Sets the state that ``decide`` wants for the run, if any. False when Prefect is not reached."""
        from prefect.exceptions import ObjectNotFound

        worker = self._worker
        if worker is None:
            return False
        try:
            state = decide(await worker.client.read_flow_run(flow_run_id))
            if state is not None:
                await worker.client.set_flow_run_state(flow_run_id, state, force=True)
        except ObjectNotFound:  # somebody deleted the run
            return True
        except httpx.HTTPError:
            return False
        return True

    async def stop(self) -> None:
        """Ends the flow runs with the agent and puts them back into the pool.

        An experiment's run goes on where it was when an agent takes it again.
        """
        self._closing = True
        self._stopping.update(self._runs)
        running = list(self._runs.items())
        await asyncio.gather(
            *(_end(child, at_once=run_id in self._resumable) for run_id, child in running)
        )
        for flow_run_id, _ in running:
            if flow_run_id not in self._cancelling:
                await self._requeue(flow_run_id)

    async def _requeue(self, flow_run_id: UUID) -> None:
        from prefect.states import Scheduled

        def decide(flow_run: FlowRun) -> State | None:
            state = flow_run.state
            if state is not None and state.is_final() and not state.is_crashed():
                return None
            return Scheduled(message="its agent was stopped")

        await self._set_state(flow_run_id, decide)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _end(child: Child, at_once: bool = False) -> None:
    """SIGTERM to the process, after a while SIGKILL to it and what it started."""
    if not at_once:
        child.send_signal(signal.SIGTERM)
        await asyncio.wait([child.ended], timeout=TERMINATE_SECONDS)
    if child.is_running and child.name is not None and child.name.is_alive():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        await asyncio.wait([child.ended], timeout=TERMINATE_SECONDS)


def _is_final(state: State | None) -> bool:
    return state is not None and state.is_final()


def _import_worker() -> Any:
    from determined_deployments.agent import worker

    return worker
