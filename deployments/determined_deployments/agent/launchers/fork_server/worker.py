"""Our worker type in Prefect: ``determined-process``.

A worker that was started by hand (``prefect worker start --pool default``) runs a command per flow run.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect.workers.base import BaseVariables

from determined_deployments.agent.launchers.base import Exit
from determined_deployments.agent.launchers.commands import run_command
from determined_deployments.agent.launchers.fork_server.launcher import ForkServerLauncher
from determined_deployments.agent.worker import AgentWorker, JobConfiguration

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun


class ProcessJobConfiguration(JobConfiguration):
    """The settings with which a flow run's process is started."""


class ProcessVariables(BaseVariables):
    """The settings that a deployment may give its runs."""


@dataclass
class _Alone:
    identifier: str
    ended: asyncio.Future[Exit]


class DeterminedProcessWorker(AgentWorker):
    """Starts flow runs as processes of this machine."""

    type = ForkServerLauncher.worker_type
    job_configuration = ProcessJobConfiguration
    job_configuration_variables = ProcessVariables
    _description = "Runs Determined's experiments and trials on an agent of a resource pool."
    _display_name = "Determined (process)"

    async def launch_alone(self, flow_run: FlowRun, configuration: JobConfiguration) -> _Alone:
        child = await run_command(configuration.program())

        async def ended() -> Exit:
            return Exit.of_status(await child.ended)

        return _Alone(f"{socket.gethostname()}:{child.pid}", asyncio.create_task(ended()))
