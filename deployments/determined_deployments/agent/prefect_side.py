"""Prefect's half of the agent: an online worker, its flow runs, our deployments.

Prefect's own loop would end the process after a few minutes without a server, so the loop is here. It
polls slowly; the service says when to look at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx

from determined.common import lean_jsonschema
from determined.common.backoff import Backoff
from determined.common.wire import serving
from determined.common.wire.prefect import EXPERIMENT_ENTRYPOINT, PREFECT_PASSWORD
from determined.common.wire.serving import AGENT_TOKEN, RUN_TOKEN
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.base import (
    Call,
    Exit,
    Job,
    JobCommand,
    Launcher,
    Running,
)
from determined_deployments.agent.outage import Outage
from determined_deployments.agent.relaunches import Relaunches
from determined_deployments.agent.run_tokens import served_by

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State

    from determined_deployments.agent.worker import AgentWorker, JobConfiguration

logger = logging.getLogger(__name__)

POLL_SECONDS = 15.0
SYNC_SECONDS = 30.0
RETRY_SECONDS = (0.3, 10.0)
TERMINATE_SECONDS = 3.0

RUN_FLOW_RUN = "determined_deployments.agent.flow_run:run_flow_run"
REGISTER = "determined_deployments.deploy:register_in_fork"


def import_worker(launcher: Launcher) -> type[AgentWorker]:
    """The launcher's worker type in Prefect, with which Prefect is imported."""
    lean_jsonschema.import_it()
    return launcher.worker_class()


class PrefectSide:
    """:meth:`run` for ever; :meth:`poll_now` from anywhere; :meth:`stop` before the end."""

    def __init__(
        self, config: AgentConfig, launcher: Launcher, adopted: Iterable[Running] = ()
    ) -> None:
        self._config = config
        self._launcher = launcher
        self._adopted = list(adopted)
        self._outage = Outage("Prefect", logger)
        self.takes_signed = True
        """Whether the service knows signed tokens; one of the release before has said that it does not."""
        self._poll = asyncio.Event()
        self._runs: dict[UUID, Held] = {}
        self._cleaning: dict[UUID, asyncio.Task[None]] = {}
        self._relaunches = Relaunches()
        self._resumable: set[UUID] = set()
        """Runs that lose nothing when they are killed, and go on when they are started again."""
        self._cancelling: set[UUID] = set()
        self._stopping: set[UUID] = set()
        self._closing = False
        self._asking = False
        """Whether the pool is being asked for runs: those that it names are taken."""
        self._held_back: set[UUID] = set()
        """Runs that were about to be started when the agent was told to stop."""
        self._worker: AgentWorker | None = None
        self._registering: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def poll_now(self) -> None:
        """A run waits in the work pool."""
        self._poll.set()

    async def run(self) -> None:
        # Prefect's import takes a second, and the service is not to wait for it.
        worker_class = await asyncio.to_thread(import_worker, self._launcher)
        self._adopt()
        backoff = Backoff(*RETRY_SECONDS)
        while True:
            worker: AgentWorker = worker_class(
                work_pool_name=self._config.resource_pool,
                name=self._config.agent_id,
                # Nothing is started before its time: the next poll is soon enough.
                prefetch_seconds=POLL_SECONDS,
                heartbeat_interval_seconds=int(SYNC_SECONDS),
            )
            worker.launch = self._launch
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
            await asyncio.sleep(backoff.next_delay())

    async def _serve(self, worker: AgentWorker) -> None:
        backoff = Backoff(*RETRY_SECONDS)
        next_sync = 0.0
        while not self._closing:
            wait = POLL_SECONDS
            try:
                if time.monotonic() >= next_sync:
                    await worker.sync_with_backend()
                    next_sync = time.monotonic() + SYNC_SECONDS
                if self._registering is None:  # there is a work pool now
                    self._registering = asyncio.create_task(self._register_deployments())
                self._poll.clear()
                self._asking = True
                try:
                    await worker.get_and_submit_flow_runs()
                finally:
                    self._asking = False
                await self._check_cancelling(worker)
                backoff.reset()
                self._outage.over()
            except httpx.HTTPError as error:
                self._outage.failed(error or type(error).__name__)
                wait = backoff.next_delay()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._poll.wait()
        # :meth:`stop` still speaks to Prefect by this worker.
        await asyncio.Event().wait()

    async def _register_deployments(self) -> None:
        """Beside the runs: the first ones need not wait until the last deployment is there."""
        backoff = Backoff(*RETRY_SECONDS)
        while not self._closing:
            try:
                worker = self._worker
                if worker is not None and await self._are_registered(worker):
                    return
            except httpx.HTTPError as error:
                logger.debug("the deployments are not registered yet: %s", error)
            except Exception:
                logger.exception("the deployments could not be registered; trying again")
            await asyncio.sleep(backoff.next_delay())

    async def _are_registered(self, worker: AgentWorker) -> bool:
        # With a parser of YAML: nothing that a starting agent has to wait for.
        from determined_deployments.deploy import MISTAKES, is_registered

        if await is_registered(worker.client):
            return True
        env = (
            {}
            if self._config.prefect_auth is None
            else {PREFECT_PASSWORD: self._config.prefect_auth.get_secret_value()}
        )
        order = {"work_pool": self._config.resource_pool, "env": env}
        job = Job("errand", "register-deployments", Call(REGISTER, order))
        errand = Held(self._launcher, await self._launcher.start(job))
        ended = await errand.ended
        await errand.clean_up()
        if ended.code in (0, MISTAKES):
            return True
        logger.warning("the deployments could not be registered (%s); trying again", ended)
        return False

    async def _launch(self, flow_run: FlowRun, configuration: JobConfiguration) -> Held:
        # Over everything: a flow of somebody's own speaks to the service as a user, by a block or a login.
        configuration.env.update(
            {
                "DET_MASTER": self._config.master_url,
                **self.tokens_of(flow_run, configuration.our_flow),
                "DET_AGENT_ID": self._config.agent_id,
                "DET_WORK_DIR": str(self._launcher.work_dir("flow_run", str(flow_run.id))),
            }
        )
        program: Call | JobCommand = configuration.program()
        if configuration.entrypoint is not None:
            order = {
                "flow_run_id": str(flow_run.id),
                "entrypoint": configuration.entrypoint,
                "directory": configuration.directory,
                "env": configuration.env,
            }
            program = Call(RUN_FLOW_RUN, order)
        resumable = configuration.entrypoint == EXPERIMENT_ENTRYPOINT
        # Its process is known to Prefect by the first one's name, which a later one takes over.
        note = {"resumable": resumable, "identifier": configuration.identifier}
        if (cleaning := self._cleaning.get(flow_run.id)) is not None:
            await cleaning
        if self._closing:
            # Its submission ends with the agent; :meth:`stop` puts it back into the pool.
            self._held_back.add(flow_run.id)
            await asyncio.Event().wait()
        job = Job("flow_run", str(flow_run.id), program, note)
        held = Held(self._launcher, await self._launcher.start(job))
        self._keep(flow_run.id, held, resumable)
        held.ended.add_done_callback(lambda _: self._clean_up(flow_run.id, held))
        if resumable:
            self._relaunches.started(flow_run.id)
        return held

    def tokens_of(self, flow_run: FlowRun, our_flow: str | None) -> dict[str, str]:
        """The variables with what the run shows the service; empty where it gets nothing."""
        served = served_by(our_flow, flow_run.parameters, flow_run.id)
        secret = self._config.agent_token.get_secret_value()
        if served is not None and not self.takes_signed:
            return {RUN_TOKEN: "", AGENT_TOKEN: secret}
        return {RUN_TOKEN: "" if served is None else serving.sign(secret, served), AGENT_TOKEN: ""}

    def _goes_on(self, flow_run_id: UUID, ended: Exit) -> bool:
        """True if a run whose process has ended is started again at once."""
        due = self._relaunches.is_due(flow_run_id, ended)
        if not due or self._closing or flow_run_id in self._stopping:
            return False
        logger.warning("flow run %s was killed (%s): starting it again", flow_run_id, ended)
        return True

    def _keep(self, flow_run_id: UUID, held: Held, resumable: bool) -> None:
        self._runs[flow_run_id] = held
        if resumable:
            self._resumable.add(flow_run_id)

        def ended(task: asyncio.Task[Exit]) -> None:
            self._runs.pop(flow_run_id, None)
            self._resumable.discard(flow_run_id)

        held.ended.add_done_callback(ended)

    def _clean_up(self, flow_run_id: UUID, held: Held) -> None:
        if not held.ended.cancelled():
            task = self._cleaning[flow_run_id] = asyncio.create_task(held.clean_up())
            task.add_done_callback(lambda _: self._cleaning.pop(flow_run_id, None))

    def _adopt(self) -> None:
        """Flow runs that an earlier agent process started."""
        for running in self._adopted:
            held, resumable = Held(self._launcher, running), bool(running.note.get("resumable"))
            self._keep(UUID(running.id), held, resumable)
            identifier = running.note.get("identifier") or running.identifier
            self._spawn(self._follow_adopted(UUID(running.id), held, resumable, identifier))

    async def _follow_adopted(
        self, flow_run_id: UUID, held: Held, resumable: bool, identifier: str
    ) -> None:
        """Waits for the process of an adopted run; then puts the run back into the pool, or ends it as
        Crashed."""
        from prefect.states import Crashed, Scheduled

        await asyncio.shield(held.ended)

        def decide(flow_run: FlowRun) -> State | None:
            state = flow_run.state
            # What is being cancelled is the service's: it watches the run, and cancels the experiment.
            ended = _is_final(state) or (resumable and state is not None and state.is_cancelling())
            # None: the agent was killed before it had told Prefect what it started.
            if ended or flow_run.infrastructure_pid not in (None, identifier):
                return None  # another process runs it by now
            make: Any = Scheduled if resumable else Crashed
            return make(message="its process ended while the agent was away")

        backoff = Backoff(*RETRY_SECONDS)
        # After a power cut Prefect may be away for longer than the agent.
        while not (self._closing or await self._set_state(flow_run_id, decide)):  # noqa: ASYNC110
            await asyncio.sleep(backoff.next_delay())
        if not self._closing:
            await held.clean_up()
        self.poll_now()

    async def _check_cancelling(self, worker: AgentWorker) -> None:
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

        held = self._runs.get(flow_run.id)
        self._stopping.add(flow_run.id)
        if held is not None:
            await held.end(TERMINATE_SECONDS)
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
        if self._registering is not None:
            self._registering.cancel()
        await self._settle_submissions()
        self._stopping.update(self._runs)
        running = list(self._runs.items())
        await asyncio.gather(
            *(held.end(TERMINATE_SECONDS, run_id in self._resumable) for run_id, held in running)
        )
        for flow_run_id in {run_id for run_id, _ in running} | self._held_back:
            if flow_run_id not in self._cancelling:
                await self._requeue(flow_run_id)

    async def _settle_submissions(self) -> None:
        """Waits until each run that the worker has taken from the pool is started or held back.

        Else it would stay Pending with nobody to begin it, until the service puts it back after a while.
        """

        def is_open() -> bool:
            taken = self._worker.submitting if self._worker is not None else frozenset()
            return self._asking or bool(taken - self._runs.keys() - self._held_back)

        deadline = time.monotonic() + TERMINATE_SECONDS
        while is_open() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

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


def _is_final(state: State | None) -> bool:
    return state is not None and state.is_final()
