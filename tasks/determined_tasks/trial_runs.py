"""Makes the Prefect run of a trial: a gated child run under the experiment's run.

Plain coroutines rather than ``@task``: the task engine would add a second task run and about
as many API calls again to each trial, and the experiment flow's own snapshot, not Prefect's
replay, is what makes creation repeatable (the idempotency key does the rest).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from httpx import HTTPStatusError
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.responses import DeploymentResponse
from prefect.states import Pending
from prefect.tasks import Task

from determined.common.wire.prefect import (
    TRIAL_DEPLOYMENT,
    TRIAL_FLOW,
    experiment_tags,
    waiting_run,
)
from determined.common.wire.search import TrialRef


@dataclass(frozen=True)
class TrialRunFactory:
    """Creates the child runs of one experiment's flow run."""

    client: PrefectClient
    deployment: DeploymentResponse
    experiment_id: int
    flow_run_id: UUID
    owner: str | None = None

    @classmethod
    async def open(
        cls,
        client: PrefectClient,
        *,
        experiment_id: int,
        flow_run_id: UUID,
        owner: str | None = None,
    ) -> TrialRunFactory:
        """Looks the ``trial`` deployment up once. Raises ObjectNotFound when it is not deployed."""
        deployment = await client.read_deployment_by_name(TRIAL_DEPLOYMENT)
        return cls(client, deployment, experiment_id, flow_run_id, owner)

    async def create(self, trial: TrialRef) -> UUID:
        """The id of the child run of ``trial``; safe to repeat.

        The dummy task run is what makes Prefect draw the run as a subflow of the experiment.
        """
        trial_id, request_id = trial.trial_id, trial.request_id
        placeholder: Task[Any, Any] = Task(name=TRIAL_FLOW, fn=_placeholder)
        parent = await self.client.create_task_run(
            task=placeholder,
            flow_run_id=self.flow_run_id,
            dynamic_key=f"trial-{request_id}",
            name=f"trial-{trial_id}",
            state=Pending(),
        )
        try:
            return await self._create(trial, parent.id, trial.resource_pool)
        except HTTPStatusError as error:
            if error.response.status_code != 404 or trial.resource_pool is None:
                raise
        # The resource pool has no work pool (yet).
        return await self._create(trial, parent.id, self.deployment.work_pool_name)

    async def _create(self, trial: TrialRef, parent_id: UUID, work_pool: str | None) -> UUID:
        tags = experiment_tags(self.experiment_id, self.owner)
        body = waiting_run(
            flow_id=self.deployment.flow_id,
            deployment_id=self.deployment.id,
            work_pool=work_pool,
            parameters={"trial_id": trial.trial_id},
            name=trial.name or f"trial-{trial.trial_id}",
            tags=[*self.deployment.tags, *tags, f"trial-{trial.trial_id}"],
            key=f"{self.experiment_id}/{trial.request_id}",
            parent_task_run_id=parent_id,
            token=trial.run_token,
        )
        answer = await self.client.request("POST", "/flow_runs/", json=body)
        return UUID(answer.json()["id"])


def _placeholder() -> None:
    """The body of the dummy parent task: it never runs."""
