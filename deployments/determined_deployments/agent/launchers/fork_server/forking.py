"""The common part of launchers whose jobs begin as forks of zygotes on the agent's machine."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers import leg_ends
from determined_deployments.agent.launchers.base import (
    Call,
    Exit,
    Job,
    JobCommand,
    Launcher,
    LaunchError,
    Running,
)
from determined_deployments.agent.launchers.commands import run_command
from determined_deployments.agent.launchers.fork_server import plans, scratch
from determined_deployments.agent.launchers.fork_server.learning import PATIENCE_SECONDS
from determined_deployments.agent.launchers.fork_server.server import (
    ForkServer,
    ForkServerError,
    ZygotePlan,
)
from determined_deployments.agent.launchers.fork_server.zygote import ROOT
from determined_deployments.agent.launchers.process_records import ProcessRecords
from determined_deployments.agent.launchers.processes import Child, watch
from determined_tasks import bell
from determined_tasks.context_dir import allocation_dir

if TYPE_CHECKING:
    from determined.common.wire.legs import LegSpec

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Forked(Running):
    """A job and its first process.

    ``spec``: a leg's order, for one that this agent started. ``adopted``: nobody watches the process yet.
    ``lost``: the leg's supervisor did not clean up.
    """

    child: Child
    spec: LegSpec | None = None
    adopted: bool = False
    lost: bool = False


class ForkingLauncher(Launcher):
    """Calls run in forks of the warmest zygote that is ready, commands as programs of their own.

    A subclass decides from which zygote a leg's supervisor is forked (:meth:`leg_zygote`, :meth:`start_leg`).

    A leg's record is the supervisor's ``leg.json``; a flow run's is a file with its process' id and start
    time, written as soon as the id is known. An agent that dies in between leaves a flow run that nobody
    knows: the service takes it for silent, and schedules the run again.
    """

    def __init__(self, config: AgentConfig, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        super().__init__(config, fetch)
        self.forks = ForkServer()
        self._flow_runs = ProcessRecords(config.work_dir / "flow_runs")

    @classmethod
    @abstractmethod
    def leg_zygote(cls) -> ZygotePlan | None:
        """The zygote from which supervisors of legs are forked, once it is ready. None: they are no forks."""

    @abstractmethod
    async def start_leg(self, job: Job, program: Call) -> Running:
        """Starts a leg's supervisor; where it is a fork, by :meth:`forked`."""

    async def __aenter__(self) -> Self:
        await self.forks.__aenter__()
        scratch.take_over(self.config.work_dir, self.forks.directory)
        if (zygote := self.leg_zygote()) is not None:
            self.forks.want(zygote)
        if self.config.prefect_api_url:
            self.forks.want(ZygotePlan(plans.FLOW, ROOT, plans.FLOW_MODULES, plans.FLOW_OPTIONAL))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.forks.__aexit__(*exc)

    async def adopt(self) -> list[Running]:
        found: list[Running] = []
        for leg in leg_ends.records(self.config.work_dir):
            child = Child(leg.supervisor.pid, leg.supervisor)
            found.append(Forked("leg", leg.allocation_id, identify(child), {}, child, adopted=True))
        for id_, name, note in self._flow_runs.read():
            child = Child(name.pid, name)
            found.append(Forked("flow_run", id_, identify(child), note, child, adopted=True))
        return found

    async def start(self, job: Job) -> Running:
        if isinstance(job.program, JobCommand):
            running = _running(job, await _command(job.program))
        elif job.kind == "leg":
            return await self.start_leg(job, job.program)
        else:
            # To import Prefect in the fork, next to the zygote that does the same, would make both slower.
            await self.forks.wait_ready([plans.FLOW, ROOT])
            await self.forks.wait_started(plans.FLOW, PATIENCE_SECONDS)
            running = await self.forked(job, [plans.FLOW, ROOT], job.program)
        if job.kind == "flow_run" and running.child.name is not None:
            self._flow_runs.write(job.id, running.child.name, job.note)
        return running

    async def forked(self, job: Job, zygotes: list[str], program: Call, **more: Any) -> Forked:
        """The job in a fork of the first of the ``zygotes`` that is ready, with ``more`` in its argument."""
        argument = {**program.argument, **more}
        return _running(job, await self.fork(zygotes, program.function, argument))

    async def fork(self, zygotes: list[str], function: str, argument: dict[str, Any]) -> Child:
        try:
            return await self.forks.fork(zygotes, function, argument)
        except ForkServerError:
            logger.warning("a fork of %s did not happen, trying again", function)
            return await self.forks.fork(zygotes, function, argument)

    async def wait(self, running: Running) -> Exit:
        assert isinstance(running, Forked)
        child = running.child
        if running.adopted:
            await watch(child)
        status = await asyncio.shield(child.ended)
        if running.kind != "leg":
            return Exit.of_status(status)
        ended = await leg_ends.read(self.config.work_dir, running.id, child.pid, status)
        running.lost = not ended.in_order
        return ended

    async def signal(self, running: Running, number: signal.Signals) -> None:
        assert isinstance(running, Forked)
        running.child.send_signal(number)

    async def ring(self, running: Running) -> bool:
        return bell.ring(allocation_dir(self.config.work_dir, running.id))

    async def clean_up(self, running: Running) -> None:
        assert isinstance(running, Forked)
        if running.kind == "flow_run":
            self._flow_runs.remove(running.id)
        elif running.lost:
            leg_ends.remove(self.config.work_dir, running.id)


def _running(job: Job, child: Child) -> Forked:
    return Forked(job.kind, job.id, identify(child), job.note, child)


async def _command(command: JobCommand) -> Child:
    try:
        return await run_command(command)
    except OSError as error:
        raise LaunchError(f"{command.argv[0]} cannot be started: {error}") from error


def identify(child: Child) -> str:
    """The name of a job by its first process."""
    return f"{socket.gethostname()}:{child.pid}"
