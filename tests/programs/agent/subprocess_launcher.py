"""A second launcher: each job is a program in a separate folder, as on a node that the agent does not see.

Proof that the agent's core needs no fork server, and no file system that it shares with its jobs: the agent
passes on the call, signals and rings, and gets the end. Only the job and the launcher use the job's folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from prefect.workers.base import BaseVariables

from determined.common.wire.agents import Slot
from determined.common.wire.legs import ExitKind
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.base import (
    Exit,
    Job,
    JobCommand,
    Kind,
    Launcher,
    LaunchError,
    Running,
)
from determined_deployments.agent.launchers.process_records import ProcessRecords
from determined_deployments.agent.launchers.processes import Child, watch
from determined_deployments.agent.worker import AgentWorker, JobConfiguration
from determined_tasks import bell
from determined_tasks.context_dir import allocation_dir
from determined_tasks.supervision import LegRecord, ProcessName

CALL = "determined_deployments.agent.launchers.call"
# The shell is the node: it goes on without the agent, and knows the exit code. The job begins when it is on
# record; if the agent dies before, it does nothing.
NODE = """
exec 3<&0
(read go <&3 && exec "$@" 3<&- </dev/null >&2) & echo $!
exec 3<&- >&-
wait $!; echo $? >"$NODE/code"
"""


@dataclass(eq=False)
class Placed(Running):
    """``node``: the shell; ``job``: the number of its process; ``folder``: the folder of this start."""

    node: Child
    job: int
    folder: Path
    killed: bool = False


class SubprocessLauncher(Launcher):
    worker_type = "test-subprocess"
    limits_legs = True

    def __init__(self, config: AgentConfig, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        super().__init__(config, fetch)
        self._jobs = config.work_dir.with_name(f"{config.work_dir.name}.jobs")
        self._records = ProcessRecords(config.work_dir / "subprocesses")

    @classmethod
    def worker_class(cls) -> type[SubprocessWorker]:
        return SubprocessWorker

    def work_dir(self, kind: Kind, id_: str) -> Path:
        return self._jobs / f"{kind}-{id_}"

    async def adopt(self) -> list[Running]:
        found: list[Running] = []
        for _, node, kept in self._records.read():
            folder, child = Path(kept.pop("folder")), Child(node.pid, node)
            child.waiter = asyncio.create_task(watch(child))
            found.append(Placed(**kept, node=child, folder=folder))
        known = {self.work_dir(one.kind, one.id) for one in found}
        for path in self._jobs.iterdir() if self._jobs.is_dir() else ():
            if path not in known:
                shutil.rmtree(path, ignore_errors=True)
        return found

    async def start(self, job: Job) -> Running:
        place = self.work_dir(job.kind, job.id)
        place.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="start-", dir=place))
        empty, order = folder / "empty", folder / "order"
        empty.mkdir()
        program = job.program
        if not isinstance(program, JobCommand):
            call = {"function": program.function, "argument": program.argument}
            order.write_text(json.dumps(call))
            program = JobCommand([sys.executable, "-P", "-m", CALL, str(order)])
        node = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", NODE, "node", *program.argv),
            env={**os.environ, **program.env, "NODE": str(folder)},
            cwd=empty,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert node.stdin is not None and node.stdout is not None
        pid, name = int(await node.stdout.readline()), ProcessName.of(node.pid)
        if name is None:
            raise LaunchError("its node ended at once")
        identifier = f"{socket.gethostname()}:{pid}"
        if job.kind != "errand":
            where = {"identifier": identifier, "job": pid, "folder": str(folder)}
            kept = {"kind": job.kind, "id": job.id, "note": job.note, **where}
            self._records.write(_record(folder), name, kept)
        child = Child(node.pid, name)

        async def wait() -> None:
            await node.wait()
            child.set_ended(None)

        child.waiter = asyncio.create_task(wait())
        node.stdin.write(b"go\n")
        node.stdin.close()
        return Placed(job.kind, job.id, identifier, job.note, child, pid, folder)

    async def wait(self, running: Running) -> Exit:
        assert isinstance(running, Placed)
        await asyncio.shield(running.node.ended)
        try:
            code = int((running.folder / "code").read_text())
        except (OSError, ValueError):
            ended = Exit(signal=9) if running.killed else Exit(reason="its node is gone")
        else:
            ended = Exit(signal=code - 128) if code > 128 else Exit(code=code)
        if running.kind == "leg" and not ended.in_order:
            record = LegRecord.read(self._leg_dir(running))
            if record is not None:
                await asyncio.to_thread(record.clear_up)
        return ended

    async def signal(self, running: Running, number: signal.Signals) -> None:
        assert isinstance(running, Placed)
        if number == signal.SIGKILL:
            running.killed = True
            running.node.send_signal(number)  # to all of the session
        elif running.node.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.job, number)

    async def ring(self, running: Running) -> bool:
        return bell.ring(self._leg_dir(running))

    async def clean_up(self, running: Running) -> None:
        assert isinstance(running, Placed)
        self._records.remove(_record(running.folder))
        shutil.rmtree(running.folder, ignore_errors=True)
        place = self.work_dir(running.kind, running.id)
        if not list(place.glob("start-*")):
            shutil.rmtree(place, ignore_errors=True)

    def _leg_dir(self, running: Running) -> Path:
        return allocation_dir(self.work_dir("leg", running.id), running.id)


def _record(folder: Path) -> str:
    return f"{folder.parent.name}.{folder.name}"


class KeepingLauncher(SubprocessLauncher):
    """Its jobs run on other machines, as it were."""

    keeps_legs = True


class TellingLauncher(SubprocessLauncher):
    """A launcher with waits, reasons, machines and changing slots, like an engine or a cluster."""

    made: ClassVar[TellingLauncher]

    def __init__(self, config: AgentConfig, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        super().__init__(config, fetch)
        TellingLauncher.made = self
        self.now = config.devices()
        self.why: str | None = None
        self.goes: str | None = None
        self.machine: str | None = None

    def tell(
        self,
        now: list[Slot],
        why: str | None = None,
        goes: str | None = None,
        machine: str | None = None,
    ) -> None:
        self.now, self.why, self.goes, self.machine = now, why, goes, machine
        self.changed.set()

    def slots(self) -> list[Slot]:
        return self.now

    def waits_for(self, running: Running) -> str | None:
        return self.why

    def leaving(self, running: Running) -> str | None:
        return self.goes

    def machine_of(self, running: Running) -> str | None:
        return self.machine

    async def wait(self, running: Running) -> Exit:
        ended = await super().wait(running)
        if running.kind != "leg" or ended.signal is None:
            return ended
        reason = "out of memory: its limit is 64 MiB"
        return replace(ended, kind=ExitKind.EXITED, reason=reason)


class SubprocessJobConfiguration(JobConfiguration):
    pass


class SubprocessVariables(BaseVariables):
    pass


class SubprocessWorker(AgentWorker):
    type = SubprocessLauncher.worker_type
    job_configuration = SubprocessJobConfiguration
    job_configuration_variables = SubprocessVariables
