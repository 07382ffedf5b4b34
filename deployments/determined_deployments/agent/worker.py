"""The base of every launcher's worker type in Prefect: it hands flow runs to the agent.

Runs of deployments whose entrypoint is a module become calls; everything else runs a command per flow run.
"""

from __future__ import annotations

import abc
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import anyio.abc
from prefect.workers.base import (
    BaseJobConfiguration,
    BaseVariables,
    BaseWorker,
    BaseWorkerResult,
)
from pydantic import PrivateAttr

from determined_deployments.agent.launchers.base import Exit, JobCommand

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

SET_DIRECTORY = "prefect.deployments.steps.set_working_directory"
"""The step that ``prefect deploy`` adds to a deployment that has no other."""
OUR_FLOWS = "determined_flows."
"""With this begin the entrypoints of this project's flows."""


class JobConfiguration(BaseJobConfiguration):
    """The settings with which a flow run is started. ``entrypoint`` is set for module entrypoints only.

    ``our_flow``: the entrypoint of the flow if it is one of this project's, which speak to the service.
    ``directory``: where it is to run, as ``prefect deploy`` notes the directory that it was called in.
    ``identifier``: Prefect's name for the first process; processes that replace it keep the name.
    """

    _identifier: str | None = PrivateAttr(default=None)
    _entrypoint: str | None = PrivateAttr(default=None)
    _directory: str | None = PrivateAttr(default=None)
    _our_flow: str | None = PrivateAttr(default=None)

    @property
    def our_flow(self) -> str | None:
        return self._our_flow

    @property
    def identifier(self) -> str | None:
        return self._identifier

    @property
    def entrypoint(self) -> str | None:
        return self._entrypoint

    @property
    def runs_here(self) -> bool:
        """Whether the agent forks the run: one of our own flows, whose code is installed with the agent."""
        return (self._entrypoint or "").startswith(OUR_FLOWS)

    @property
    def directory(self) -> str | None:
        return self._directory

    def program(self) -> JobCommand:
        """The configuration's command, else Prefect's own for a flow run."""
        env = {name: value for name, value in self.env.items() if value is not None}
        if self.command is None or self.command == self._base_flow_run_command():
            return JobCommand([sys.executable, "-m", "prefect", "flow-run", "execute"], env)
        return JobCommand(["/bin/sh", "-c", self.command], env)

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
        self._our_flow = entrypoint if (entrypoint or "").startswith(OUR_FLOWS) else None
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
    """Whether the steps do more than change the working directory; and that directory."""
    directory = None
    for step in steps or []:
        given = step.get(SET_DIRECTORY)
        if len(step) != 1 or not isinstance(given, dict) or set(given) != {"directory"}:
            return True, None
        directory = str(given["directory"])
    return False, directory


class WorkerResult(BaseWorkerResult):
    """The end of a flow run's job; ``identifier`` is its Running's."""


class StartedRun(Protocol):
    """A flow run's job, as the worker sees it."""

    @property
    def identifier(self) -> str: ...

    @property
    def ended(self) -> asyncio.Future[Exit]: ...


class AgentWorker(BaseWorker[JobConfiguration, BaseVariables, WorkerResult], abc.ABC):
    """Runs flow runs by way of the agent, which sets :attr:`launch`.

    A launcher's worker type is a subclass with ``type``, ``job_configuration``,
    ``job_configuration_variables`` and a description.
    """

    launch: Callable[[FlowRun, Any], Awaitable[StartedRun]] | None = None
    goes_on: Callable[[UUID, Exit], bool] = staticmethod(lambda flow_run_id, ended: False)
    """Whether a run whose job ended like this is to be started again here."""
    is_stopping: Callable[[UUID], bool] = staticmethod(lambda flow_run_id: False)
    """Whether the agent itself ends this run: then its exit is not a crash."""

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """What `prefect worker start` calls: becomes an agent of the pool, where a cluster is known.

        An agent never calls it.
        """
        from determined_deployments.agent.start import start_as_worker

        named = self.name if self.name and not self.name.startswith(type(self).__name__) else None
        start_as_worker(self.type, self._work_pool_name, named)
        await super().start(*args, **kwargs)

    @property
    def submitting(self) -> frozenset[UUID]:
        """The runs that were taken from the work pool and whose start Prefect does not know of yet."""
        return frozenset(self._submitting_flow_run_ids)

    async def launch_alone(self, flow_run: FlowRun, configuration: JobConfiguration) -> StartedRun:
        """Starts a run in a worker that somebody started by hand, without an agent."""
        raise NotImplementedError(
            f"a worker of the type {self.type} works only inside an agent: start one (docs/operate/agent.md)"
        )

    async def run(
        self,
        flow_run: FlowRun,
        configuration: JobConfiguration,
        task_status: anyio.abc.TaskStatus[Any] | None = None,
    ) -> WorkerResult:
        launch = self.launch or self.launch_alone
        started = await launch(flow_run, configuration)
        configuration._identifier = identifier = started.identifier
        if task_status is not None:
            task_status.started(identifier)
        ended = await asyncio.shield(started.ended)
        while self.goes_on(flow_run.id, ended):
            started = await launch(flow_run, configuration)
            ended = await asyncio.shield(started.ended)
        code = 0 if self.is_stopping(flow_run.id) else ended.number
        return WorkerResult(identifier=identifier, status_code=code)
