"""Our worker type in Prefect: ``determined-kubernetes``.

It is Prefect's Kubernetes worker: its template, form, registry and credentials blocks apply to the flow runs
of users' deployments, which get a Job each. Experiments' flow runs, which only wait, are the agent's.
"""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Self

import anyio.abc
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import FlowRun
from prefect.workers.base import BaseWorkerResult
from prefect_kubernetes.observer import start_observer
from prefect_kubernetes.settings import KubernetesSettings
from prefect_kubernetes.worker import (
    KubernetesWorker,
    KubernetesWorkerJobConfiguration,
    KubernetesWorkerVariables,
)
from pydantic import Field

from determined_deployments.agent.launchers.kubernetes.launcher import (
    KubernetesLauncher,
    end_observer,
)
from determined_deployments.agent.worker import AgentWorker, JobConfiguration

FINISHED_JOB_TTL_S = 24 * 60 * 60
"""Time to read the log of a run's pod."""


class KubernetesVariables(KubernetesWorkerVariables):
    """The form on the work pool's page."""

    finished_job_ttl: int | None = Field(
        default=FINISHED_JOB_TTL_S,
        title="Finished Job TTL",
        description="Seconds after which Kubernetes removes a Job that has ended (1.21 and later).",
    )


class KubernetesJobConfiguration(JobConfiguration, KubernetesWorkerJobConfiguration):
    """What a flow run's Job is made with."""

    @classmethod
    async def from_template_and_values(
        cls,
        base_job_template: dict[str, Any],
        values: dict[str, Any],
        client: PrefectClient | None = None,
    ) -> Any:
        template = with_manifest(base_job_template)
        return await super().from_template_and_values(template, values, client=client)


def with_manifest(template: dict[str, Any]) -> dict[str, Any]:
    """The template, or the usual one where it has no manifest: the service made the pool before its first
    agent came, as one of processes."""
    given = template.get("job_configuration") or {}
    if "job_manifest" in given:
        return template
    usual = DeterminedKubernetesWorker.get_default_base_job_template()
    return {**usual, "job_configuration": {**usual["job_configuration"], **given}}


class DeterminedKubernetesWorker(AgentWorker, KubernetesWorker):
    """Starts flow runs of other deployments as Jobs."""

    _observer: ClassVar[threading.Thread | None] = None

    type = KubernetesLauncher.worker_type
    job_configuration = KubernetesJobConfiguration
    job_configuration_variables = KubernetesVariables
    _description = "Runs Determined's trials, and flows, as Jobs of a Kubernetes cluster."
    _display_name = "Determined (Kubernetes)"

    async def __aenter__(self) -> Self:
        # Prefect's own starts and stops its observer of Jobs in the event loop, and waits there until Prefect
        # answers, minutes where it is away. One lives as long as the agent, and nothing waits for it.
        observer = DeterminedKubernetesWorker._observer
        if observer is None and KubernetesSettings().observer.enabled:
            observer = threading.Thread(target=start_observer, daemon=True)
            DeterminedKubernetesWorker._observer = observer
            observer.start()
        await super(KubernetesWorker, self).__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await super(KubernetesWorker, self).__aexit__(*exc_info)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        try:
            await super().start(*args, **kwargs)
        finally:
            end_observer()

    async def _initialize_after_sync(self) -> None:
        """Gives a pool that has none the template of Jobs, so that people can change it on Prefect's page."""
        pool = self._work_pool
        if pool is not None and with_manifest(pool.base_job_template) is not pool.base_job_template:
            pool.base_job_template = with_manifest(pool.base_job_template)
            change = WorkPoolUpdate(base_job_template=pool.base_job_template)
            await self.client.update_work_pool(pool.name, change)
        await super()._initialize_after_sync()

    async def run(
        self,
        flow_run: FlowRun,
        configuration: Any,
        task_status: anyio.abc.TaskStatus[Any] | None = None,
    ) -> Any:
        run = AgentWorker.run if configuration.runs_here else KubernetesWorker.run
        result: BaseWorkerResult = await run(self, flow_run, configuration, task_status)
        return result
