"""Our worker type in Prefect: ``determined-docker``.

It is Prefect's Docker worker: its template, form and registry blocks apply to the flow runs of users'
deployments, which get a container each. Experiments' flow runs, which only wait, are the agent's.
"""

from __future__ import annotations

from typing import Any

import anyio.abc
from prefect.client.schemas.objects import FlowRun
from prefect.workers.base import BaseWorkerResult
from prefect_docker.worker import DockerWorker, DockerWorkerJobConfiguration

from determined_deployments.agent.launchers.docker.launcher import DockerLauncher
from determined_deployments.agent.worker import AgentWorker, JobConfiguration


class DockerJobConfiguration(JobConfiguration, DockerWorkerJobConfiguration):
    """What a flow run's container is made with."""


class DeterminedDockerWorker(AgentWorker, DockerWorker):
    """Starts flow runs of other deployments in containers."""

    type = DockerLauncher.worker_type
    job_configuration = DockerJobConfiguration
    job_configuration_variables = None
    _description = "Runs Determined's trials, and flows, in containers on an agent."
    _display_name = "Determined (Docker)"

    async def run(
        self,
        flow_run: FlowRun,
        configuration: Any,
        task_status: anyio.abc.TaskStatus[Any] | None = None,
    ) -> Any:
        run = AgentWorker.run if configuration.runs_here else DockerWorker.run
        result: BaseWorkerResult = await run(self, flow_run, configuration, task_status)
        return result
