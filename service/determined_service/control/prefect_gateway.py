"""The few things the service asks of Prefect's API, by Prefect's own client.

Prefect is imported when the gateway opens: everything else in the service does without it.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self
from uuid import UUID

from determined_service.settings import Settings

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

EXPERIMENT_DEPLOYMENT = "experiment/experiment"
FAR_FUTURE = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)
"""When a run that waits for slots is "scheduled": never, so that no worker takes it."""

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "CRASHED"})


class RunGone(Exception):
    """Prefect does not know the run (any more): somebody deleted it."""


class NotDeployed(Exception):
    """The deployment does not exist yet: ``prefect deploy`` has not been run."""


@dataclass(frozen=True, slots=True)
class RunState:
    """A flow run as far as the service cares. ``since``: when it entered the state."""

    type: str
    name: str
    message: str | None
    since: datetime.datetime
    run_count: int


class Gateway(Protocol):
    """What the mirror and the reconciler need; :class:`PrefectGateway`, or a fake in tests."""

    async def create_experiment_run(
        self, experiment_id: int, *, key: str, name: str, tags: Sequence[str]
    ) -> tuple[UUID, str | None]:
        """Creates the run, once per ``key``; returns it and its work pool. Raises NotDeployed."""

    async def put_artifact(self, run_id: UUID, key: str, markdown: str, description: str) -> None:
        """Shows ``markdown`` among the run's artifacts; one that is there already stays."""

    async def set_state(self, run_id: UUID, type: str, name: str, message: str) -> None:
        """Sets the state whatever the present one is. Raises RunGone."""

    async def read_state(self, run_id: UUID) -> RunState:
        """The present state. Raises RunGone."""

    async def cancelling(self) -> list[UUID]:
        """Runs that somebody asked Prefect to cancel and that have not ended."""

    def is_away(self, error: Exception) -> bool:
        """Whether ``error`` means that Prefect does not answer at all."""


class PrefectGateway:
    """``async with PrefectGateway(settings) as gateway``; one connection pool."""

    def __init__(self, settings: Settings) -> None:
        assert settings.prefect_api_url is not None
        self._url = settings.prefect_api_url
        secret = settings.prefect_auth
        self._auth = None if secret is None else secret.get_secret_value()
        self._client: PrefectClient
        self._deployment: tuple[UUID, str | None] | None = None

    async def __aenter__(self) -> Self:
        from prefect.client.orchestration import PrefectClient

        # trust_env: a proxy meant for the internet must not stand between.
        self._client = PrefectClient(
            self._url, auth_string=self._auth, httpx_settings={"trust_env": False}
        )
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.__aexit__(kind, error, traceback)

    async def create_experiment_run(
        self, experiment_id: int, *, key: str, name: str, tags: Sequence[str]
    ) -> tuple[UUID, str | None]:
        from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

        if self._deployment is None:
            try:
                found = await self._client.read_deployment_by_name(EXPERIMENT_DEPLOYMENT)
            except ObjectNotFound as error:
                raise NotDeployed(
                    f"Prefect has no deployment {EXPERIMENT_DEPLOYMENT!r} yet"
                ) from error
            self._deployment = (found.id, found.work_pool_name)
        deployment_id, pool = self._deployment
        try:
            run = await self._client.create_flow_run_from_deployment(
                deployment_id,
                parameters={"experiment_id": experiment_id},
                name=name,
                tags=tags,
                idempotency_key=key,
            )
        except PrefectHTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            self._deployment = None
            raise NotDeployed(f"the deployment {EXPERIMENT_DEPLOYMENT!r} was deleted") from error
        return run.id, pool

    async def put_artifact(self, run_id: UUID, key: str, markdown: str, description: str) -> None:
        from prefect.client.schemas.filters import (
            ArtifactFilter,
            ArtifactFilterFlowRunId,
            ArtifactFilterKey,
        )

        of_run = ArtifactFilterFlowRunId(any_=[run_id])
        wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]), flow_run_id=of_run)
        if await self._client.read_artifacts(artifact_filter=wanted, limit=1):
            return
        # Not create_artifact(): it would start a thread that tells Prefect of an event.
        await self._client.request(
            "POST",
            "/artifacts/",
            json={
                "key": key,
                "type": "markdown",
                "data": markdown,
                "description": description,
                "flow_run_id": str(run_id),
            },
        )

    async def set_state(self, run_id: UUID, type: str, name: str, message: str) -> None:
        from prefect.client.schemas.objects import State, StateDetails, StateType
        from prefect.exceptions import ObjectNotFound

        details = StateDetails()
        if type == "SCHEDULED":
            now = name == "Scheduled"
            when = datetime.datetime.now(datetime.UTC) if now else FAR_FUTURE
            details = StateDetails.model_validate({"scheduled_time": when})
        state: State[Any] = State(
            type=StateType(type), name=name, message=message or None, state_details=details
        )
        try:
            # Forced: Prefect would refuse a run that is scheduled in the far future to run.
            await self._client.set_flow_run_state(run_id, state, force=True)
        except ObjectNotFound as error:
            raise RunGone(str(run_id)) from error

    async def read_state(self, run_id: UUID) -> RunState:
        from prefect.exceptions import ObjectNotFound

        try:
            run = await self._client.read_flow_run(run_id)
        except ObjectNotFound as error:
            raise RunGone(str(run_id)) from error
        state = run.state
        assert state is not None  # every run of a deployment has one
        return RunState(
            state.type.value, state.name or "", state.message, state.timestamp, run.run_count
        )

    async def cancelling(self) -> list[UUID]:
        from prefect.client.schemas.filters import (
            FlowRunFilter,
            FlowRunFilterState,
            FlowRunFilterStateType,
        )
        from prefect.client.schemas.objects import StateType
        from prefect.client.schemas.sorting import FlowRunSort

        kinds = FlowRunFilterStateType(any_=[StateType.CANCELLING])
        # Without a sort the server of Prefect 3.8.8 refuses its own client's request.
        found = await self._client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=kinds)),
            sort=FlowRunSort.ID_DESC,
            limit=200,
        )
        return [run.id for run in found]

    def is_away(self, error: Exception) -> bool:
        import httpx

        return isinstance(error, httpx.TransportError)
