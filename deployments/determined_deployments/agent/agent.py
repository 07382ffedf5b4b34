"""The agent: registers with the service, does what it says, keeps Prefect's worker going.

Everything it needs may be away at any time, at the start too: it waits, tries again and stays quiet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import uuid
from typing import Any

from determined import __version__
from determined.common.api import errors
from determined_deployments.agent import scratch
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.fork_server import ForkServer, ZygotePlan
from determined_deployments.agent.learning import TRIAL
from determined_deployments.agent.legs import Legs
from determined_deployments.agent.outage import Outage
from determined_deployments.agent.prefect_side import FLOW, PrefectSide
from determined_deployments.agent.service_client import ServiceClient
from determined_deployments.agent.zygote import ROOT

logger = logging.getLogger(__name__)

RETRY_SECONDS = (0.2, 3.0)

# Imported before trials are forked. Torch is not required.
TRIAL_MODULES = ["determined.core"]
TRIAL_OPTIONAL = [
    "numpy",
    "torch",
    "torch.nn",
    "torch.utils.data",
    "determined.storage.directory",
    "determined.storage.shared_fs",
    # Used by the first connection.
    "stringprep",
    "encodings.idna",
    # Used by the first report.
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.summary.writer.record_writer",
    "determined_deployments.agent.warm_up:torch_optimizer",
]
FLOW_MODULES = ["prefect.flow_engine", "prefect.engine", "determined_deployments.agent.flow_run"]
FLOW_OPTIONAL = ["determined_flows.experiment"]


class Agent:
    """One agent process; :meth:`run` returns after :meth:`stop`, or raises what made a loop end."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._session = str(uuid.uuid4())
        self._stopping = asyncio.Event()
        self._poll_seq = 0

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        config = self._config
        config.work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        service = ServiceClient(config.master_url, config.agent_token.get_secret_value())
        async with ForkServer() as forks:
            scratch.take_over(config.work_dir, forks.directory)
            forks.want(ZygotePlan(TRIAL, ROOT, TRIAL_MODULES, TRIAL_OPTIONAL))
            legs = Legs(config, forks, service, [*TRIAL_MODULES, *TRIAL_OPTIONAL])
            legs.adopt()
            prefect = None
            if config.prefect_api_url:
                forks.want(ZygotePlan(FLOW, ROOT, FLOW_MODULES, FLOW_OPTIONAL))
                prefect = PrefectSide(config, forks)
            work = asyncio.create_task(self._work(service, forks, legs, prefect))
            flows = asyncio.create_task(prefect.run()) if prefect else None
            stopping = asyncio.create_task(self._stopping.wait())
            # Neither of the loops ends by itself: if one does, it is a fault that must be seen.
            loops: set[asyncio.Task[Any]] = {work, flows} if flows else {work}
            ended, _ = await asyncio.wait({stopping, *loops}, return_when=asyncio.FIRST_COMPLETED)
            work.cancel()
            await asyncio.gather(legs.stop(), prefect.stop() if prefect else _nothing())
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        await service.close()
        for task in ended & loops:
            task.result()

    async def _work(
        self,
        service: ServiceClient,
        forks: ForkServer,
        legs: Legs,
        prefect: PrefectSide | None,
    ) -> None:
        await forks.wait_ready([ROOT])
        delay, longest = RETRY_SECONDS
        registered = False
        outage = Outage("the service", logger)
        while True:
            try:
                if not registered:
                    await self._register(service, legs)
                    registered = True
                answer = await service.work(
                    self._config.agent_id, self._session, legs.running, self._poll_seq
                )
                delay = RETRY_SECONDS[0]
                outage.over()
            except errors.ConflictException as error:
                logger.info("registering again: %s", error)
                registered = False
                await asyncio.sleep(delay)
                continue
            except errors.APIException as error:
                outage.failed(error)
                registered = registered and not isinstance(error, errors.NotFoundException)
                await asyncio.sleep(delay)
                delay = min(delay * 2, longest)
                continue
            for spec in answer["launch"]:
                legs.launch(spec)
            for allocation_id in answer["kill"]:
                legs.kill(allocation_id)
            if answer["prefect_poll_seq"] != self._poll_seq:
                self._poll_seq = answer["prefect_poll_seq"]
                if prefect is not None:
                    prefect.poll_now()
            if answer["kill"] and not answer["launch"]:
                await legs.settle_kills()

    async def _register(self, service: ServiceClient, legs: Legs) -> None:
        answer = await service.register(
            self._config.agent_id,
            {
                "session": self._session,
                "host": socket.gethostname(),
                "version": __version__,
                "allocations": legs.running,
                **self._config.registration(),
            },
        )
        for allocation_id in answer["kill"]:
            legs.kill(allocation_id)
        logger.info("registered as %s", self._config.agent_id)


async def _nothing() -> None:
    return


async def run_agent(config: AgentConfig) -> None:
    """Runs until SIGTERM or SIGINT."""
    agent = Agent(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, agent.stop)
    await agent.run()
