"""The few calls that the service makes to Prefect's API, with Prefect's own client.

Prefect is imported when the gateway opens; the rest of the service does not need it.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self
from uuid import UUID

from determined.common import lean_jsonschema
from determined.common.wire.prefect import (
    DELETION_FLOW,
    EXPERIMENT_FLOW,
    FAR_FUTURE,
    PIPELINE_FLOW,
    RETRAINING_FLOW,
    SCHEDULED,
    TASK_FLOWS,
    TRIAL_FLOW,
    is_awaiting_slots,
    is_place_tag,
    job_variables,
    task_deployment,
    waiting_run,
)
from determined_service.base.settings import Settings
from determined_service.prefect import job_template

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun, State

FLOWS = (
    EXPERIMENT_FLOW,
    TRIAL_FLOW,
    *TASK_FLOWS,
    DELETION_FLOW,
    RETRAINING_FLOW,
    PIPELINE_FLOW,
)
"""The names of our flows and of their deployments."""
PAGE = 200
MAX_PAGES = 25

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "CRASHED"})


class RunGone(Exception):
    """Prefect does not know the run (any more): somebody deleted it."""


class ArtifactGone(Exception):
    """Prefect does not know the artifact (any more): somebody deleted it."""


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


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that is Cancelling or Pending ``since``. ``is_ours``: it was made from one of our deployments."""

    id: UUID
    type: str
    name: str
    since: datetime.datetime
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment of this platform. ``pool``: its work pool."""

    id: UUID
    flow_id: UUID
    pool: str | None
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Artifact:
    """An element of a page. ``type``: ``markdown``, ``table`` (``data`` is a JSON list of rows) or
    ``progress`` (``data`` in percent). ``key``: of lower-case letters, digits and dashes; what has one is
    also listed on Prefect's page of all artifacts."""

    key: str | None
    type: str
    data: str | float
    description: str

    @property
    def called(self) -> str:
        """The name by which it is found again among the artifacts of its run."""
        return self.key or self.description


@dataclass(frozen=True, slots=True)
class ParentRun:
    """The flow run that another is a subflow of, and where in it: ``key`` is different for each subflow."""

    flow_run_id: UUID
    key: str
    name: str


class Gateway(Protocol):
    """The calls that the mirror and the reconciler need; implemented by :class:`PrefectGateway`, or by a
    fake in tests.
    """

    async def create_task_run(
        self, flow: str, task_id: str, *, pool: str | None, key: str, name: str, tags: Sequence[str]
    ) -> UUID:
        """Creates the run of a task, which waits for slots, once per ``key``; in the work pool ``pool`` if
        there is one of that name. Raises NotDeployed.
        """

    async def artifacts(self, run_id: UUID) -> dict[str, UUID]:
        """The run's artifacts by :attr:`Artifact.called`."""

    async def create_artifact(self, run_id: UUID, artifact: Artifact) -> UUID:
        """Shows it among the run's artifacts; returns its id."""

    async def update_artifact(self, artifact_id: UUID, artifact: Artifact) -> None:
        """Gives the artifact its new content. Raises ArtifactGone."""

    async def name_run(self, run_id: UUID, name: str, tags: Sequence[str]) -> None:
        """Names the run and adds the tags; those of the place where it was before go. Raises RunGone."""

    async def set_state(self, run_id: UUID, type: str, name: str, message: str) -> None:
        """Set the state, from any present state. Raises RunGone."""

    async def let_workers_take(self, run_id: UUID) -> None:
        """Leaves a run that was made to wait to Prefect's workers, as soon as it is scheduled for a time that
        has come. Raises RunGone.
        """

    async def read_state(self, run_id: UUID) -> RunState:
        """The present state. Raises RunGone."""

    async def cancelling(self) -> list[UUID]:
        """Runs that were cancelled in Prefect and have not ended."""

    async def cancelled_since(self, since: datetime.datetime) -> list[UUID]:
        """Runs of our flows that ended as Cancelled at ``since`` or later."""

    async def cancelled_among(
        self, run_ids: Sequence[UUID], before: datetime.datetime
    ) -> list[UUID]:
        """The runs among these, of any flow, that are Cancelled, or Cancelling since ``before``."""

    async def unfinished(self) -> list[OpenRun]:
        """Runs of our flows that are Cancelling or Pending (InfrastructurePending too)."""

    def is_away(self, error: Exception) -> bool:
        """True if ``error`` means that Prefect does not answer."""


def import_prefect() -> None:
    """Import the modules that the gateway needs when it opens."""
    lean_jsonschema.import_it()
    importlib.import_module("prefect.client.orchestration")


class PrefectGateway:
    """``async with PrefectGateway(settings) as gateway``; one connection pool."""

    def __init__(self, settings: Settings) -> None:
        assert settings.prefect_api_url is not None
        self._url = settings.prefect_api_url
        secret = settings.prefect_auth
        self._auth = None if secret is None else secret.get_secret_value()
        self._client: PrefectClient
        self._deployments: dict[str, Deployment] = {}

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

    async def create_run(
        self,
        deployment: str,
        *,
        parameters: dict[str, Any],
        key: str,
        name: str,
        tags: Sequence[str],
        token: str,
        parent: ParentRun | None = None,
    ) -> UUID:
        """Creates a run of the deployment, once per ``key``; of a ``parent`` it is a subflow. ``token``: the
        run's token for the service.

        Raises NotDeployed.
        """
        from prefect.exceptions import PrefectHTTPStatusError

        found = await self._find_deployment(deployment)
        try:
            run = await self._client.create_flow_run_from_deployment(
                found.id,
                parameters=parameters,
                name=name,
                tags=tags,
                idempotency_key=key,
                job_variables=job_variables(token),
                parent_task_run_id=None if parent is None else await self._create_parent(parent),
            )
        except PrefectHTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            self._deployments.pop(deployment, None)
            raise NotDeployed(f"the deployment {deployment!r} was deleted") from error
        return run.id

    async def _create_parent(self, parent: ParentRun) -> UUID | None:
        """A dummy task run, which makes Prefect draw its flow run as a subflow; None: the parent is gone."""
        from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
        from prefect.states import Pending
        from prefect.tasks import Task

        placeholder: Task[Any, Any] = Task(name=EXPERIMENT_FLOW, fn=_placeholder)
        try:
            await self._client.read_flow_run(parent.flow_run_id)
            made = await self._client.create_task_run(
                task=placeholder,
                flow_run_id=parent.flow_run_id,
                dynamic_key=parent.key,
                name=parent.name,
                state=Pending(),
            )
        except ObjectNotFound:
            return None
        except PrefectHTTPStatusError as error:
            if error.response.is_server_error:
                raise
            return None
        return made.id

    async def create_task_run(
        self, flow: str, task_id: str, *, pool: str | None, key: str, name: str, tags: Sequence[str]
    ) -> UUID:
        from httpx import HTTPStatusError

        deployment = await self._find_deployment(task_deployment(flow))

        async def create(work_pool: str | None) -> UUID:
            body = waiting_run(
                flow_id=deployment.flow_id,
                deployment_id=deployment.id,
                work_pool=work_pool,
                parameters={"task_id": task_id},
                name=name,
                tags=[*deployment.tags, *tags],
                key=key,
            )
            answer = await self._client.request("POST", "/flow_runs/", json=body)
            return UUID(answer.json()["id"])

        try:
            return await create(pool)
        except HTTPStatusError as error:
            if error.response.status_code != 404 or pool is None:
                raise
        # The resource pool has no work pool (yet).
        return await create(deployment.pool)

    async def _find_deployment(self, name: str) -> Deployment:
        """Raises NotDeployed."""
        from prefect.exceptions import ObjectNotFound

        if name not in self._deployments:
            try:
                found = await self._client.read_deployment_by_name(name)
            except ObjectNotFound as error:
                raise NotDeployed(
                    f"Prefect has no deployment {name!r} yet: run `prefect deploy`"
                ) from error
            self._deployments[name] = Deployment(
                found.id, found.flow_id, found.work_pool_name, tuple(found.tags)
            )
        return self._deployments[name]

    async def put_work_pool(self, name: str, worker_type: str, description: str) -> None:
        """Creates the work pool, or gives it the description (if that is not empty).

        A new one of another type than the agents' usual one gets its template from its first worker.
        """
        from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
        from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

        try:
            found = await self._client.read_work_pool(name)
        except ObjectNotFound:
            # An agent may create it at the same moment.
            with contextlib.suppress(ObjectAlreadyExists):
                made = WorkPoolCreate(
                    name=name,
                    type=worker_type,
                    description=description or None,
                    base_job_template=job_template.TEMPLATE
                    if worker_type == job_template.TYPE
                    else {},
                )
                await self._client.create_work_pool(made)
            return
        if description and found.description != description:
            await self._client.update_work_pool(name, WorkPoolUpdate(description=description))

    async def pause_work_pool(self, name: str, *, paused: bool) -> None:
        """Pause the work pool or let it go on, if it exists."""
        from prefect.client.schemas.actions import WorkPoolUpdate
        from prefect.exceptions import ObjectNotFound

        with contextlib.suppress(ObjectNotFound):
            await self._client.update_work_pool(name, WorkPoolUpdate(is_paused=paused))

    async def place_deployments(self, pool: str, pools: Collection[str]) -> bool:
        """Moves our deployments to the work pool ``pool``, from any of ``pools`` or from none.

        Runs that exist stay where they are. Returns whether every deployment was there.
        """
        from prefect.client.schemas.actions import DeploymentUpdate
        from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName

        named = DeploymentFilter(name=DeploymentFilterName(any_=list(FLOWS)))
        found = await self._client.read_deployments(deployment_filter=named)
        for one in found:
            where = one.work_pool_name
            if where != pool and (where is None or where in pools):
                await self._client.update_deployment(one.id, DeploymentUpdate(work_pool_name=pool))
                self._deployments.clear()
        return {one.name for one in found} >= set(FLOWS)

    async def delete_run(self, run_id: UUID) -> None:
        """Delete the run with its artifacts, if it exists."""
        from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
        from prefect.exceptions import ObjectNotFound

        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
        for artifact in await self._client.read_artifacts(artifact_filter=of_run):
            with contextlib.suppress(ObjectNotFound):
                await self._client.delete_artifact(artifact.id)
        with contextlib.suppress(ObjectNotFound):
            await self._client.delete_flow_run(run_id)

    async def artifacts(self, run_id: UUID) -> dict[str, UUID]:
        from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
        found = await self._client.read_artifacts(artifact_filter=of_run)
        return {one.key or one.description or "": one.id for one in found}

    async def create_artifact(self, run_id: UUID, artifact: Artifact) -> UUID:
        # Not create_artifact(): it would start a thread that tells Prefect of an event.
        answer = await self._client.request(
            "POST",
            "/artifacts/",
            json={
                "key": artifact.key,
                "type": artifact.type,
                "data": artifact.data,
                "description": artifact.description,
                "flow_run_id": str(run_id),
            },
        )
        return UUID(answer.json()["id"])

    async def update_artifact(self, artifact_id: UUID, artifact: Artifact) -> None:
        from httpx import HTTPStatusError

        given = {"data": artifact.data, "description": artifact.description}
        try:
            await self._client.request(
                "PATCH", "/artifacts/{id}", path_params={"id": artifact_id}, json=given
            )
        except HTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            raise ArtifactGone(artifact.called) from error

    async def name_run(self, run_id: UUID, name: str, tags: Sequence[str]) -> None:
        from prefect.exceptions import ObjectNotFound

        try:
            run = await self._client.read_flow_run(run_id)
            # In the order in which they came; Prefect takes the whole list.
            kept = (one for one in run.tags if not is_place_tag(one))
            both = list(dict.fromkeys([*kept, *tags]))
            await self._client.update_flow_run(run_id, name=name, tags=both)
        except ObjectNotFound as error:
            raise RunGone(str(run_id)) from error

    async def set_state(self, run_id: UUID, type: str, name: str, message: str) -> None:
        from prefect.client.schemas.objects import State, StateDetails, StateType
        from prefect.exceptions import ObjectNotFound

        details = StateDetails()
        if type == "SCHEDULED":
            now = name == SCHEDULED
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
        if is_awaiting_slots(name):
            # From now on the date keeps workers away, until a user schedules the run.
            await self.let_workers_take(run_id)

    async def let_workers_take(self, run_id: UUID) -> None:
        from prefect.client.schemas.objects import FlowRunPolicy
        from prefect.exceptions import PrefectHTTPStatusError

        try:
            await self._client.update_flow_run(run_id, empirical_policy=FlowRunPolicy())
        except PrefectHTTPStatusError as error:
            if error.response.status_code != 404:
                raise
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
        return [run.id for run in await self._find(["CANCELLING"])]

    async def cancelled_since(self, since: datetime.datetime) -> list[UUID]:
        return [run.id for run in await self._find(["CANCELLED"], ended_after=since)]

    async def cancelled_among(
        self, run_ids: Sequence[UUID], before: datetime.datetime
    ) -> list[UUID]:
        from prefect.client.schemas.filters import (
            FlowRunFilter,
            FlowRunFilterId,
            FlowRunFilterState,
            FlowRunFilterStateType,
        )
        from prefect.client.schemas.objects import StateType
        from prefect.client.schemas.sorting import FlowRunSort

        types = FlowRunFilterStateType(any_=[StateType.CANCELLED, StateType.CANCELLING])
        found: list[UUID] = []
        for start in range(0, len(run_ids), PAGE):
            wanted = FlowRunFilter(
                id=FlowRunFilterId(any_=list(run_ids[start : start + PAGE])),
                state=FlowRunFilterState(type=types),
            )
            runs = await self._client.read_flow_runs(
                flow_run_filter=wanted, sort=FlowRunSort.ID_DESC, limit=PAGE
            )
            found += [
                run.id
                for run in runs
                if run.state is not None
                and (run.state.type == StateType.CANCELLED or run.state.timestamp < before)
            ]
        return found

    async def unfinished(self) -> list[OpenRun]:
        from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName

        runs = await self._find(["CANCELLING", "PENDING"])
        if not runs:
            return []
        named = DeploymentFilter(name=DeploymentFilterName(any_=list(FLOWS)))
        ours = {found.id for found in await self._client.read_deployments(deployment_filter=named)}
        return [
            OpenRun(
                run.id,
                run.state.type.value,
                run.state.name or "",
                run.state.timestamp,
                run.deployment_id in ours,
            )
            for run in runs
            if run.state is not None
        ]

    async def _find(
        self, types: Sequence[str], *, ended_after: datetime.datetime | None = None
    ) -> list[FlowRun]:
        """Runs of our flows in a state of one of ``types``, page by page."""
        from prefect.client.schemas.filters import (
            FlowFilter,
            FlowFilterName,
            FlowRunFilter,
            FlowRunFilterEndTime,
            FlowRunFilterState,
            FlowRunFilterStateType,
        )
        from prefect.client.schemas.objects import StateType
        from prefect.client.schemas.sorting import FlowRunSort

        kinds = FlowRunFilterStateType(any_=[StateType(kind) for kind in types])
        ended = (
            None
            if ended_after is None
            else FlowRunFilterEndTime.model_validate({"after_": ended_after})
        )
        wanted = FlowRunFilter(state=FlowRunFilterState(type=kinds), end_time=ended)
        found: list[FlowRun] = []
        for page in range(MAX_PAGES):
            # Without a sort the server of Prefect 3.8.8 refuses its own client's request.
            runs = await self._client.read_flow_runs(
                flow_filter=FlowFilter(name=FlowFilterName(any_=list(FLOWS))),
                flow_run_filter=wanted,
                sort=FlowRunSort.ID_DESC,
                limit=PAGE,
                offset=page * PAGE,
            )
            found += runs
            if len(runs) < PAGE:
                break
        return found

    def is_away(self, error: Exception) -> bool:
        import httpx

        return isinstance(error, httpx.TransportError)


def _placeholder() -> None:
    """The body of a dummy task: it never runs."""
