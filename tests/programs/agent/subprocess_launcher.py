"""A second launcher: each job a plain subprocess. Proof that the agent's core needs no fork server."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from prefect.workers.base import BaseVariables

from determined.common.wire.legs import ExitKind
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers import leg_ends
from determined_deployments.agent.launchers.base import (
    Command,
    Exit,
    Job,
    Launcher,
    LaunchError,
    Running,
)
from determined_deployments.agent.launchers.commands import run_command
from determined_deployments.agent.launchers.process_records import ProcessRecords
from determined_deployments.agent.launchers.processes import Child, watch
from determined_deployments.agent.worker import AgentWorker, JobConfiguration


@dataclass(eq=False)
class Subprocess(Running):
    child: Child
    adopted: bool = False
    lost: bool = False


class SubprocessLauncher(Launcher):
    worker_type = "test-subprocess"

    def __init__(self, config: AgentConfig, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        super().__init__(config, fetch)
        self._records = ProcessRecords(config.work_dir / "subprocesses")
        self._calls = config.work_dir / "calls"
        self._calls.mkdir(exist_ok=True)

    def _call_file(self, kind: str, id_: str) -> Path:
        return self._calls / f"{kind}-{id_}.json"

    @classmethod
    def worker_class(cls) -> type[SubprocessWorker]:
        return SubprocessWorker

    async def adopt(self) -> list[Running]:
        found: list[Running] = []
        for leg in leg_ends.records(self.config.work_dir):
            child = Child(leg.supervisor.pid, leg.supervisor)
            found.append(Subprocess("leg", leg.allocation_id, name(child), {}, child, True))
        for id_, process, note in self._records.read():
            child = Child(process.pid, process)
            found.append(Subprocess("flow_run", id_, name(child), note, child, True))
        return found

    async def start(self, job: Job) -> Running:
        command = job.program
        if not isinstance(command, Command):
            path = self._call_file(job.kind, job.id)
            call = {"function": command.function, "argument": command.argument}
            path.write_text(json.dumps(call))
            module = "determined_deployments.agent.launchers.call"
            command = Command([sys.executable, "-P", "-m", module, str(path)])
        try:
            child = await run_command(command)
        except OSError as error:
            raise LaunchError(f"{command.argv[0]}: {error}") from error
        if job.kind == "flow_run" and child.name is not None:
            self._records.write(job.id, child.name, job.note)
        return Subprocess(job.kind, job.id, name(child), job.note, child)

    async def wait(self, running: Running) -> Exit:
        assert isinstance(running, Subprocess)
        if running.adopted:
            await watch(running.child)
        status = await asyncio.shield(running.child.ended)
        if running.kind != "leg":
            return Exit.of_status(status)
        ended = await leg_ends.read(self.config.work_dir, running.id, running.child.pid, status)
        running.lost = not ended.in_order
        return ended

    async def signal(self, running: Running, number: signal.Signals) -> None:
        assert isinstance(running, Subprocess)
        running.child.send_signal(number)

    async def clean_up(self, running: Running) -> None:
        assert isinstance(running, Subprocess)
        self._call_file(running.kind, running.id).unlink(missing_ok=True)
        if running.kind == "flow_run":
            self._records.remove(running.id)
        elif running.lost:
            leg_ends.remove(self.config.work_dir, running.id)


class TellingLauncher(SubprocessLauncher):
    """Knows more of the end of a killed leg than its signal, as a container's engine does."""

    async def wait(self, running: Running) -> Exit:
        ended = await super().wait(running)
        if running.kind != "leg" or ended.signal is None:
            return ended
        reason = "out of memory: its limit is 64 MiB"
        return replace(ended, kind=ExitKind.EXITED, reason=reason)


def name(child: Child) -> str:
    return f"{socket.gethostname()}:{child.pid}"


class SubprocessJobConfiguration(JobConfiguration):
    pass


class SubprocessVariables(BaseVariables):
    pass


class SubprocessWorker(AgentWorker):
    type = SubprocessLauncher.worker_type
    job_configuration = SubprocessJobConfiguration
    job_configuration_variables = SubprocessVariables
