"""Our worker type in Prefect: ``determined-process``.

Inside an agent, runs of deployments whose entrypoint is a module start in a fork; everything else, and a
worker that was started by hand (``prefect worker start --pool default``), runs a command per flow run.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio.abc
from prefect.workers.base import (
    BaseJobConfiguration,
    BaseVariables,
    BaseWorker,
    BaseWorkerResult,
)
from pydantic import PrivateAttr

from determined_deployments.agent.processes import Child

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

WORKER_TYPE = "determined-process"
SET_DIRECTORY = "prefect.deployments.steps.set_working_directory"
"""The step that ``prefect deploy`` adds to a deployment that has no other."""


class ProcessJobConfiguration(BaseJobConfiguration):
    """What a flow run is started with. ``entrypoint`` is set for module entrypoints only.

    ``directory``: where it is to run, as ``prefect deploy`` notes the directory that it was called in.
    ``identifier``: what Prefect knows its first process by, which those that replace it go on under.
    """

    _identifier: str | None = PrivateAttr(default=None)
    _entrypoint: str | None = PrivateAttr(default=None)
    _directory: str | None = PrivateAttr(default=None)

    @property
    def identifier(self) -> str | None:
        return self._identifier

    @property
    def entrypoint(self) -> str | None:
        return self._entrypoint

    @property
    def directory(self) -> str | None:
        return self._directory

    def prepare_for_flow_run(
        self,
        flow_run: FlowRun,
        deployment: DeploymentResponse | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        own_command = self.command is not None
        super().prepare_for_flow_run(flow_run, deployment, *args, **kwargs)
        entrypoint = deployment.entrypoint if deployment else None
        fetched, directory = _pull(deployment.pull_steps if deployment else None)
        # A file, or code that has to be fetched first, is the stock command's business.
        if (
            deployment is not None
            and entrypoint
            and not own_command
            and not fetched
            and ":" not in entrypoint
            and "/" not in entrypoint
        ):
            self._entrypoint, self._directory = entrypoint, directory


def _pull(steps: list[dict[str, Any]] | None) -> tuple[bool, str | None]:
    """Whether the steps do more than to change the working directory; the directory."""
    directory = None
    for step in steps or []:
        given = step.get(SET_DIRECTORY)
        if len(step) != 1 or not isinstance(given, dict) or set(given) != {"directory"}:
            return True, None
        directory = str(given["directory"])
    return False, directory


class ProcessVariables(BaseVariables):
    """What a deployment may set for its runs."""


class ProcessResult(BaseWorkerResult):
    """The end of a flow run's process; ``identifier`` is ``host:pid``."""


Launcher = Callable[["FlowRun", ProcessJobConfiguration], Awaitable[Child]]


class DeterminedProcessWorker(BaseWorker[ProcessJobConfiguration, ProcessVariables, ProcessResult]):
    """Starts flow runs as processes of this machine. ``launcher`` is set by the agent."""

    type = WORKER_TYPE
    job_configuration = ProcessJobConfiguration
    job_configuration_variables = ProcessVariables
    _description = "Runs Determined's experiments and trials on an agent of a resource pool."
    _display_name = "Determined (process)"

    launcher: Launcher | None = None
    goes_on: Callable[[UUID, int | None], bool] = staticmethod(lambda flow_run_id, status: False)
    """Whether a run whose process ended with this wait status is to be started again here."""
    is_stopping: Callable[[UUID], bool] = staticmethod(lambda flow_run_id: False)
    """Whether the agent itself ends this run: then its exit is not a crash."""

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: anyio.abc.TaskStatus[Any] | None = None,
    ) -> ProcessResult:
        launch = self.launcher or launch_command
        child = await launch(flow_run, configuration)
        configuration._identifier = identifier = identify(child)
        if task_status is not None:
            task_status.started(identifier)
        status = await child.ended
        while self.goes_on(flow_run.id, status):
            child = await launch(flow_run, configuration)
            status = await child.ended
        code = 1 if status is None else os.waitstatus_to_exitcode(status)
        if self.is_stopping(flow_run.id):
            code = 0
        return ProcessResult(identifier=identifier, status_code=code)


def identify(child: Child) -> str:
    """What Prefect knows a flow run's process by."""
    return f"{socket.gethostname()}:{child.pid}"


async def launch_command(flow_run: FlowRun, configuration: ProcessJobConfiguration) -> Child:
    """Starts the configuration's command, else Prefect's own for a flow run, in a directory of its own.

    An empty one: Prefect's command begins with a copy of the directory that it runs in.
    """
    folder = tempfile.TemporaryDirectory(prefix="determined-flow-run-", ignore_cleanup_errors=True)
    env = {**os.environ, **{k: v for k, v in configuration.env.items() if v is not None}}
    command = configuration.command
    if command is None or command == configuration._base_flow_run_command():
        program = [sys.executable, "-m", "prefect", "flow-run", "execute"]
        process = await asyncio.create_subprocess_exec(
            *program, env=env, cwd=folder.name, start_new_session=True
        )
    else:
        process = await asyncio.create_subprocess_shell(
            command, env=env, cwd=folder.name, start_new_session=True
        )
    child = Child(process.pid)

    async def wait() -> None:
        code = await process.wait()
        folder.cleanup()
        # As a wait status, which is what a fork server reports.
        child.set_ended(-code if code < 0 else code << 8)

    child.waiter = asyncio.create_task(wait())
    return child
