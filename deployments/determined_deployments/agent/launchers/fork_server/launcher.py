"""The launcher whose jobs are forks of zygotes on the agent's machine."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from determined_deployments.agent import programs
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers import leg_ends
from determined_deployments.agent.launchers.base import (
    Call,
    Command,
    Exit,
    Job,
    Launcher,
    LaunchError,
    Running,
)
from determined_deployments.agent.launchers.commands import run_command
from determined_deployments.agent.launchers.fork_server import plans, scratch
from determined_deployments.agent.launchers.fork_server.learning import (
    PATIENCE_SECONDS,
    TRIAL,
    Learning,
)
from determined_deployments.agent.launchers.fork_server.server import (
    ForkServer,
    ForkServerError,
    ZygotePlan,
)
from determined_deployments.agent.launchers.fork_server.zygote import ROOT
from determined_deployments.agent.launchers.process_records import ProcessRecords
from determined_deployments.agent.launchers.processes import Child, watch

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


class ForkServerLauncher(Launcher):
    """Calls run in forks of the warmest zygote that is ready, commands as programs of their own.

    A leg's record is the supervisor's ``leg.json``; a flow run's is a file with its process' id and start
    time, written as soon as the id is known. An agent that dies in between leaves a flow run that nobody
    knows: the service takes it for silent, and schedules the run again.
    """

    worker_type = "determined-process"
    worker = "determined_deployments.agent.launchers.fork_server.worker:DeterminedProcessWorker"

    def __init__(self, config: AgentConfig, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        super().__init__(config, fetch)
        self._forks = ForkServer()
        self._flow_runs = ProcessRecords(config.work_dir / "flow_runs")
        imported = [*plans.TRIAL_MODULES, *plans.trial_optional()]
        self._learning = Learning(self._forks, config.work_dir, fetch, imported)

    def lacks(self) -> dict[str, str]:
        return programs.lacking()

    async def __aenter__(self) -> Self:
        await self._forks.__aenter__()
        scratch.take_over(self.config.work_dir, self._forks.directory)
        self._forks.want(self.leg_zygote())
        if self.config.prefect_api_url:
            self._forks.want(ZygotePlan(plans.FLOW, ROOT, plans.FLOW_MODULES, plans.FLOW_OPTIONAL))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._forks.__aexit__(*exc)

    @classmethod
    def leg_zygote(cls) -> ZygotePlan:
        """What the supervisors of legs are forked from, once it is ready."""
        return ZygotePlan(TRIAL, ROOT, plans.TRIAL_MODULES, plans.trial_optional())

    async def ready(self) -> None:
        await self._forks.wait_ready([ROOT])

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
        if isinstance(job.program, Command):
            child = await _command(job.program)
            running = Forked(job.kind, job.id, identify(child), job.note, child)
        elif job.kind == "leg":
            running = await self._start_leg(job, job.program)
        else:
            # To import Prefect in the fork, next to the zygote that does the same, would make both slower.
            await self._forks.wait_ready([plans.FLOW, ROOT])
            await self._forks.wait_started(plans.FLOW, PATIENCE_SECONDS)
            child = await self._fork([plans.FLOW, ROOT], job.program, job.program.argument)
            running = Forked(job.kind, job.id, identify(child), job.note, child)
        if job.kind == "flow_run" and running.child.name is not None:
            self._flow_runs.write(job.id, running.child.name, job.note)
        return running

    async def _start_leg(self, job: Job, program: Call) -> Forked:
        spec = job.leg
        if spec is None:
            child = await self._fork([TRIAL, ROOT], program, program.argument)
            return Forked(job.kind, job.id, identify(child), job.note, child)
        if not self.config.may_share(spec):
            # Its supervisor starts a new interpreter. What the code imports stays unknown: a zygote
            # is root's, and would import with the user's variables.
            child = await self._fork([ROOT], program, program.argument)
            return Forked(job.kind, job.id, identify(child), job.note, child)
        names, learn_into = self._learning.before_leg(spec)
        try:
            await self._learning.settle(spec)
            argument = {**program.argument, "learn_into": learn_into}
            child = await self._fork(names, program, argument)
        except BaseException:
            self._learning.after_leg(spec)
            raise
        return Forked(job.kind, job.id, identify(child), job.note, child, spec)

    async def _fork(self, names: list[str], program: Call, argument: dict[str, Any]) -> Child:
        try:
            return await self._forks.fork(names, program.function, argument)
        except ForkServerError:
            logger.warning("a fork of %s did not happen, trying again", program.function)
            return await self._forks.fork(names, program.function, argument)

    async def wait(self, running: Running) -> Exit:
        assert isinstance(running, Forked)
        child = running.child
        if running.adopted:
            await watch(child)
        status = await asyncio.shield(child.ended)
        if running.kind != "leg":
            return Exit.of_status(status)
        if running.spec is not None:
            self._learning.after_leg(running.spec)
        ended = await leg_ends.read(self.config.work_dir, running.id, child.pid, status)
        running.lost = not ended.in_order
        return ended

    async def signal(self, running: Running, number: signal.Signals) -> None:
        assert isinstance(running, Forked)
        running.child.send_signal(number)

    async def clean_up(self, running: Running) -> None:
        assert isinstance(running, Forked)
        if running.kind == "flow_run":
            self._flow_runs.remove(running.id)
        elif running.lost:
            leg_ends.remove(self.config.work_dir, running.id)


async def _command(command: Command) -> Child:
    try:
        return await run_command(command)
    except OSError as error:
        raise LaunchError(f"{command.argv[0]} cannot be started: {error}") from error


def identify(child: Child) -> str:
    """The name of a job by its first process."""
    return f"{socket.gethostname()}:{child.pid}"
