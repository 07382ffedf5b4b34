"""Makes the Prefect run of a trial: a gated child run under the experiment's run.

Plain coroutines rather than ``@task``: the task engine would add a second task run and about
as many API calls again to each trial, and the experiment flow's own snapshot, not Prefect's
replay, is what makes creation repeatable (the idempotency key does the rest).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import StateDetails, StateType
from prefect.states import Pending, State
from prefect.tasks import Task

from determined.common.wire.prefect import (
    AWAITING_SLOTS,
    FAR_FUTURE,
    TRIAL_DEPLOYMENT,
    TRIAL_FLOW,
    experiment_tags,
)
from determined.common.wire.search import TrialRef


@dataclass(frozen=True)
class TrialRunFactory:
    """Creates the child runs of one experiment's flow run."""

    client: PrefectClient
    deployment_id: UUID
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
        return cls(client, deployment.id, experiment_id, flow_run_id, owner)

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
        run = await self.client.create_flow_run_from_deployment(
            self.deployment_id,
            parameters={"trial_id": trial_id},
            parent_task_run_id=parent.id,
            name=trial.name or f"trial-{trial_id}",
            idempotency_key=f"{self.experiment_id}/{request_id}",
            tags=[*experiment_tags(self.experiment_id, self.owner), f"trial-{trial_id}"],
            state=State(
                type=StateType.SCHEDULED,
                name=AWAITING_SLOTS,
                state_details=StateDetails(scheduled_time=FAR_FUTURE),
            ),
        )
        return run.id


def _placeholder() -> None:
    """The body of the dummy parent task: it never runs."""
