"""The agent: registers with the service, carries out its orders, keeps Prefect's worker going.

The service and Prefect may be away at any time, also at the agent's start: the agent waits, tries again
and stays quiet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import uuid
from typing import Any

from determined import __version__
from determined.common.api import errors
from determined.common.backoff import Backoff
from determined.common.wire import paths
from determined.common.wire.agents import AgentState, Registered, Registration, WorkRequest
from determined.common.wire.times import HEARTBEAT_S
from determined.common.wire.version import VERSION
from determined_deployments.agent import leg_limits, programs
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.experiments import ExperimentDirs
from determined_deployments.agent.host import host_name
from determined_deployments.agent.launchers import built_in
from determined_deployments.agent.launchers.base import Launcher
from determined_deployments.agent.legs import Legs
from determined_deployments.agent.outage import Outage
from determined_deployments.agent.prefect_side import PrefectSide
from determined_deployments.agent.service_client import ServiceClient
from determined_tasks import ports

logger = logging.getLogger(__name__)

RETRY_SECONDS = (0.2, 3.0)
SIGN_OFF_SECONDS = 3.0
TELL_SECONDS = 0.5
"""Between two reports of what has changed: many changes in a row are told as one."""


class AgentRefused(Exception):
    """The service refuses this agent; the message says why and what to do."""


class AgentRunner:
    """One agent process; :meth:`run` returns after :meth:`stop`, or raises the error that ended a loop."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._session = uuid.uuid4()
        self._stopping = asyncio.Event()
        self._poll_seq = 0
        self._registered = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        config = self._config
        config.work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Others may pass through work_dir when tasks have accounts of their own.
        prefect_home = config.work_dir / "prefect"
        prefect_home.mkdir(exist_ok=True)
        prefect_home.chmod(0o700)
        service = ServiceClient(config.master_url, config.agent_token.get_secret_value())
        launcher_class = built_in.load(config.launcher)

        async def fetch(model_def_hash: str) -> bytes:
            return await service.get_bytes(paths.MODEL_DEFINITION.format(hash=model_def_hash))

        limits = None
        if not launcher_class.limits_legs:
            limits = await asyncio.to_thread(leg_limits.prepare, config)
        async with launcher_class(config, fetch) as launcher:
            found = await launcher.adopt()
            if limits is not None:
                known = [running.id for running in found if running.kind == "leg"]
                await asyncio.to_thread(leg_limits.sweep, limits, known)
            legs = Legs(config, launcher, service, limits)
            legs.adopt(running for running in found if running.kind == "leg")
            prefect = None
            if config.prefect_api_url:
                flow_runs = [running for running in found if running.kind == "flow_run"]
                prefect = PrefectSide(config, launcher, flow_runs)
            experiments = ExperimentDirs(config.work_dir)
            work = asyncio.create_task(self._work(service, launcher, legs, experiments, prefect))
            flows = asyncio.create_task(prefect.run()) if prefect else None
            stopping = asyncio.create_task(self._stopping.wait())
            # None of the loops ends by itself: if one does, it is a fault that must be seen.
            tell = asyncio.create_task(self._tell(service, launcher, legs))
            loops: set[asyncio.Task[Any]] = {work, tell, flows} if flows else {work, tell}
            ended, _ = await asyncio.wait({stopping, *loops}, return_when=asyncio.FIRST_COMPLETED)
            refused = work in ended and isinstance(work.exception(), AgentRefused)
            # Legs that an agent before this one left here may go on: another release may take them over.
            leaves = refused or launcher.keeps_legs
            work.cancel()
            await asyncio.gather(
                legs.leave() if leaves else self._stop_legs(service, legs),
                prefect.stop() if prefect else _nothing(),
            )
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await experiments.stop()
        if limits is not None:
            leg_limits.leave(limits)
        await service.close()
        for task in ended & loops:
            task.result()

    async def _work(
        self,
        service: ServiceClient,
        launcher: Launcher,
        legs: Legs,
        experiments: ExperimentDirs,
        prefect: PrefectSide | None,
    ) -> None:
        await launcher.ready()
        backoff = Backoff(*RETRY_SECONDS)
        outage = Outage("the service", logger)
        watch = programs.ProgramWatch(launcher.missing_programs)
        while True:
            try:
                if not self._registered.is_set():
                    answer = await self._register(service, launcher, legs, watch)
                    experiments.of_cluster(answer.cluster_id)
                    if prefect is not None:
                        prefect.takes_signed = answer.takes_signed
                    self._registered.set()
                request = WorkRequest(
                    self._session,
                    legs.running,
                    self._poll_seq,
                    HEARTBEAT_S,
                    VERSION,
                    experiments.known(),
                    experiments.untold_sizes(legs.running),
                    watch.untold(),
                )
                work = await service.work(self._config.agent_id, request)
                experiments.told(request.package_bytes)
                watch.told(request.programs)
                backoff.reset()
                outage.over()
            except errors.ConflictException as error:
                logger.info("registering again: %s", error)
                self._registered.clear()
                await asyncio.sleep(backoff.next_delay())
                continue
            except errors.APIException as error:
                outage.failed(error)
                # A service of another release may have taken over.
                if isinstance(error, errors.BadRequestException):
                    self._registered.clear()
                await asyncio.sleep(backoff.next_delay())
                continue
            for spec in work.launch:
                legs.launch(spec)
            for allocation_id in work.kill:
                legs.kill(allocation_id)
            for allocation_id in work.doors:
                legs.ring(allocation_id)
            experiments.ended(work.ended)
            if work.prefect_poll_seq != self._poll_seq:
                self._poll_seq = work.prefect_poll_seq
                if prefect is not None:
                    prefect.poll_now()
            if work.kill and not work.launch:
                await legs.settle_kills()

    async def _tell(self, service: ServiceClient, launcher: Launcher, legs: Legs) -> None:
        """Says what has changed since the registration: slots, what legs wait for, and where they run."""
        while True:
            await launcher.changed.wait()
            await self._registered.wait()
            launcher.changed.clear()
            state = AgentState(
                self._session, launcher.slots(), legs.waiting(), legs.leaving(), legs.machines()
            )
            try:
                await service.tell_state(self._config.agent_id, state)
                legs.told(state.leaving)
            except errors.NotFoundException:
                logger.info("the service is of a release that does not ask what has changed here")
                legs.told(state.leaving)
            except errors.APIException as error:
                logger.debug("what has changed here is not told yet, trying again: %s", error)
                launcher.changed.set()
            await asyncio.sleep(TELL_SECONDS)

    async def _stop_legs(self, service: ServiceClient, legs: Legs) -> None:
        """Signs off, and again while legs store their checkpoints: a silent agent's legs would be lost."""
        stopping = asyncio.create_task(legs.stop())
        while not stopping.done():
            await self._sign_off(service)
            await asyncio.wait({stopping}, timeout=HEARTBEAT_S)
        await stopping

    async def _sign_off(self, service: ServiceClient) -> None:
        """Tells the service that no more work is taken here. Without it the agent counts as lost later."""
        try:
            async with asyncio.timeout(SIGN_OFF_SECONDS):
                await service.sign_off(self._config.agent_id, self._session)
        except (TimeoutError, errors.APIException) as error:
            logger.info("not signed off: %s", error or "no answer")

    async def _register(
        self, service: ServiceClient, launcher: Launcher, legs: Legs, watch: programs.ProgramWatch
    ) -> Registered:
        config = self._config
        registration = Registration(
            session=self._session,
            resource_pool=config.resource_pool,
            host=host_name(),
            version=__version__,
            wire=VERSION,
            slot_type=config.slot_type,
            slots=launcher.slots(),
            allocations=legs.running,
            worker_type=launcher.worker_type,
            labels=config.labels,
            lacks=launcher.lacks(),
            containers=launcher.rights(),
            address=await _address(config.master_url),
        )
        try:
            answer = await service.register(config.agent_id, registration)
        except errors.BadRequestException as error:
            # 409: another agent of this name is at work. It is not waited for, because it may begin legs that
            # this process would not know.
            if error.status_code in (400, 409):
                raise AgentRefused(f"the service refuses this agent: {error}") from error
            raise
        watch.registered(registration.lacks)
        for allocation_id in answer.kill:
            legs.kill(allocation_id)
        if legs.waiting() or legs.leaving() or legs.machines():
            launcher.changed.set()
        logger.info("registered as %s", config.agent_id)
        return answer


async def _address(master: str) -> str:
    try:
        return await asyncio.to_thread(ports.own_address, master)
    except OSError as error:
        # Without the service there is nothing to register with either.
        logger.warning("%s", error)
        return ""


async def _nothing() -> None:
    return


async def run_agent(config: AgentConfig) -> None:
    """Runs until SIGTERM or SIGINT."""
    agent = AgentRunner(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, agent.stop)
    await agent.run()
