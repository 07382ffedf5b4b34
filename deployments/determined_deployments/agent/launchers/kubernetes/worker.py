"""Our worker type in Prefect: ``determined-kubernetes``.

It is Prefect's Kubernetes worker: its template, form, registry and credentials blocks apply to the flow runs
of users' deployments, which get a Job each. Experiments' flow runs, which only wait, are the agent's.
"""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Self

import anyio.abc
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.workers.base import BaseWorkerResult
from prefect_kubernetes.observer import start_observer
from prefect_kubernetes.settings import KubernetesSettings
from prefect_kubernetes.worker import KubernetesWorker, KubernetesWorkerJobConfiguration

from determined_deployments.agent.launchers.kubernetes.launcher import KubernetesLauncher
from determined_deployments.agent.worker import AgentWorker, JobConfiguration


class KubernetesJobConfiguration(JobConfiguration, KubernetesWorkerJobConfiguration):
    """What a flow run's Job is made with."""

    @classmethod
    async def from_template_and_values(
        cls,
        base_job_template: dict[str, Any],
        values: dict[str, Any],
        client: PrefectClient | None = None,
    ) -> Any:
        """A pool that was made before its first agent has no manifest in its template: then the usual one
        applies."""
        given = base_job_template["job_configuration"]
        if "job_manifest" not in given:
            usual = DeterminedKubernetesWorker.get_default_base_job_template()
            configuration = {**usual["job_configuration"], **given}
            base_job_template = {**usual, "job_configuration": configuration}
        return await super().from_template_and_values(base_job_template, values, client=client)


class DeterminedKubernetesWorker(AgentWorker, KubernetesWorker):
    """Starts flow runs of other deployments as Jobs."""

    _observer: ClassVar[threading.Thread | None] = None

    type = KubernetesLauncher.worker_type
    job_configuration = KubernetesJobConfiguration
    job_configuration_variables = KubernetesWorker.job_configuration_variables
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

    async def run(
        self,
        flow_run: FlowRun,
        configuration: Any,
        task_status: anyio.abc.TaskStatus[Any] | None = None,
    ) -> Any:
        run = AgentWorker.run if configuration.runs_here else KubernetesWorker.run
        result: BaseWorkerResult = await run(self, flow_run, configuration, task_status)
        return result
