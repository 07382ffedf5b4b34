"""The launcher whose legs run in containers.

A leg's supervisor is a fork on the agent's machine, as with processes, and the container is its child in all
but name: whoever of agent, supervisor and engine is killed, the container is found again by its name and
labels. Experiments' flow runs are forks, too: they only wait.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Self, TypeVar

from determined.common.wire.agents import ContainerRights
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.base import Call, Exit, Job, Running, Unusable
from determined_deployments.agent.launchers.docker import settings
from determined_deployments.agent.launchers.fork_server.forking import Forked, ForkingLauncher
from determined_deployments.agent.launchers.fork_server.server import ZygotePlan
from determined_deployments.agent.launchers.fork_server.zygote import ROOT
from determined_deployments.agent.outage import Outage
from determined_tasks.containers import engine, plan
from determined_tasks.containers.engine import EngineUnavailable
from determined_tasks.context_dir import ALLOCATIONS
from determined_tasks.supervision import ORDER, SUPERVISE, LegRecord

logger = logging.getLogger(__name__)

T = TypeVar("T")

ZYGOTE = "container-leg"
MODULES = ["docker", "determined_tasks.containers.carrier"]
RETRY_SECONDS = 2.0
TAKE_OVERS = 5
"""A leg whose supervisors died so often, one after the other, is given up."""


class DockerLauncher(ForkingLauncher):
    """When a supervisor dies, the next one takes over: at once, or when an agent adopts the leg."""

    worker_type = "determined-docker"
    worker = "determined_deployments.agent.launchers.docker.worker:DeterminedDockerWorker"
    limits_legs = True

    def __init__(self, config: AgentConfig, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        super().__init__(config, fetch)
        self._settings = settings.of_agent(config)
        self._sent: dict[str, signal.Signals] = {}
        """The last signal to each leg: its supervisor may have died of it, or before it."""

    @classmethod
    def leg_zygote(cls) -> ZygotePlan:
        return ZygotePlan(ZYGOTE, ROOT, MODULES)

    def rights(self) -> ContainerRights:
        return settings.rights(self.config)

    async def __aenter__(self) -> Self:
        client = await _insist(engine.connect)
        if await _insist(lambda: engine.maps_users(client)):
            raise Unusable(
                "the Docker engine runs containers in a user namespace (userns-remap), in which they can"
                " neither write in their working directories nor use the machine's network: start dockerd"
                " without it and have tasks run under accounts (security.default_task), or let DOCKER_HOST"
                " lead to another engine"
            )
        # Supervisors need not ask. An engine that is upgraded speaks this version, too.
        self._settings["api_version"] = client.api_version
        return await super().__aenter__()

    async def ready(self) -> None:
        await self.forks.wait_ready([ZYGOTE])

    async def adopt(self) -> list[Running]:
        found = await super().adopt()
        known = {running.id for running in found if running.kind == "leg"}
        await asyncio.to_thread(self._reap, known)
        return found

    def _reap(self, known: set[str]) -> None:
        """Removes containers of legs of which no record is left."""
        config = self.config
        names = {plan.container_name(config.agent_id, config.work_dir, id_) for id_ in known}
        try:
            client = engine.connect()
            for container in engine.of_agent(client, config.agent_id, str(config.work_dir)):
                if container["Names"] and container["Names"][0].lstrip("/") not in names:
                    logger.warning("removing %s, whose leg is unknown", container["Names"][0])
                    engine.remove(client, container["Id"])
        except EngineUnavailable as error:
            logger.warning("containers that nobody knows are left for the next start: %s", error)

    async def start_leg(self, job: Job, program: Call) -> Forked:
        more = {} if job.leg is None else {"container": self._settings}
        return await self.forked(job, [ZYGOTE], program, **more)

    async def wait(self, running: Running) -> Exit:
        assert isinstance(running, Forked)
        ended = await super().wait(running)
        if running.kind != "leg":
            return ended
        for _ in range(TAKE_OVERS):
            killed = self._sent.get(running.id) == signal.SIGKILL
            if ended.in_order or killed or not self._has_order(running):
                return ended
            await self._take_over(running)
            ended = await super().wait(running)
        if ended.in_order or self._sent.get(running.id) == signal.SIGKILL:
            return ended
        return replace(ended, reason=f"{TAKE_OVERS + 1} supervisors of its container died in a row")

    def _has_order(self, running: Running) -> bool:
        root = self.config.work_dir / ALLOCATIONS / running.id
        return (root / ORDER).exists() and LegRecord.read(root) is not None

    async def _take_over(self, running: Forked) -> None:
        logger.warning("%s: its supervisor is gone, another one takes over", running.id)
        root = self.config.work_dir / ALLOCATIONS / running.id
        argument = {"allocation": str(root), "stop": self._sent.get(running.id)}
        running.adopted = False
        running.child = await self.fork([ZYGOTE], SUPERVISE, argument)

    async def signal(self, running: Running, number: signal.Signals) -> None:
        assert isinstance(running, Forked)
        if running.kind == "leg":
            self._sent[running.id] = number
        await super().signal(running, number)

    async def clean_up(self, running: Running) -> None:
        assert isinstance(running, Forked)
        self._sent.pop(running.id, None)
        if running.kind == "leg" and running.lost and self._has_order(running):
            name = plan.container_name(self.config.agent_id, self.config.work_dir, running.id)
            await _insist(lambda: engine.remove(engine.connect(), name))
        await super().clean_up(running)


async def _insist(ask: Callable[[], T]) -> T:
    """What ``ask`` gives, in a thread, once the engine is there."""
    outage = Outage("the Docker engine", logger)
    while True:
        try:
            found = await asyncio.to_thread(ask)
        except EngineUnavailable as error:
            outage.failed(error)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            outage.over()
            return found
