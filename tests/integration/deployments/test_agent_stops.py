"""An agent that is stopped while it takes a flow run from a work pool of a real Prefect server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any, ClassVar

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate

from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.base import Exit, Job, Launcher, Running
from determined_deployments.agent.launchers.fork_server.worker import DeterminedProcessWorker
from determined_deployments.agent.prefect_side import PrefectSide
from determined_deployments.deploy import register
from tests.waiting import TIMEOUT_S

FLOW = """
from prefect import flow

@flow
def waits() -> None:
    pass
"""
FILE = """
deployments:
  - name: once
    entrypoint: flows.py:waits
    work_pool: {name: stopping}
"""


class LateWorker(DeterminedProcessWorker):
    """Reports to Prefect that it takes the run, and starts it when the test allows it."""

    type = "determined-process-late"
    taken: ClassVar[asyncio.Event]
    go: ClassVar[asyncio.Event]

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        self.taken.set()
        await self.go.wait()
        return await super().run(*args, **kwargs)


class NoLauncher(Launcher):
    """Records the flow runs that it was asked to start."""

    worker_type = LateWorker.type
    started: ClassVar[list[str]]

    @classmethod
    def worker_class(cls) -> type[LateWorker]:
        return LateWorker

    async def adopt(self) -> list[Running]:
        return []

    async def start(self, job: Job) -> Running:
        if job.kind == "errand":  # it registers our deployments, not needed here
            await asyncio.Event().wait()
        self.started.append(job.id)
        return Running(job.kind, job.id, "nowhere:1", job.note)

    async def wait(self, running: Running) -> Exit:
        await asyncio.Event().wait()
        raise AssertionError

    async def signal(self, running: Running, number: signal.Signals) -> None: ...

    async def ring(self, running: Running) -> bool:
        return False

    async def clean_up(self, running: Running) -> None: ...


async def test_a_run_that_is_just_being_taken_goes_back_into_the_pool(
    client: PrefectClient, prefect_url: str, tmp_path: Path
) -> None:
    template = LateWorker.get_default_base_job_template()
    pool = WorkPoolCreate(name="stopping", type=LateWorker.type, base_job_template=template)
    await client.create_work_pool(pool)
    (tmp_path / "flows.py").write_text(FLOW)
    (tmp_path / "prefect.yaml").write_text(FILE)
    (deployment,) = (await register(tmp_path / "prefect.yaml")).values()
    run = await client.create_flow_run_from_deployment(deployment)
    LateWorker.taken, LateWorker.go, NoLauncher.started = asyncio.Event(), asyncio.Event(), []
    settings = {
        "agent_id": "late",
        "slots": 0,
        "slot_type": "cpu",
        "resource_pool": "stopping",
        "master_url": "http://127.0.0.1:9",
        "agent_token": "of-the-test",
        "prefect_api_url": prefect_url,
        "work_dir": tmp_path / "work",
    }
    config = AgentConfig.model_validate(settings)

    async def fetch(_: str) -> bytes:
        raise AssertionError

    side = PrefectSide(config, NoLauncher(config, fetch))
    serving = asyncio.create_task(side.run())
    try:
        await asyncio.wait_for(LateWorker.taken.wait(), TIMEOUT_S)
        found = await client.read_flow_run(run.id)
        assert found.state is not None and found.state.is_pending()
        stopping = asyncio.create_task(side.stop())
        await asyncio.sleep(0)  # it has begun
        LateWorker.go.set()
        await asyncio.wait_for(stopping, TIMEOUT_S)
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    found = await client.read_flow_run(run.id)
    assert found.state is not None and found.state.is_scheduled(), found.state
    assert found.state.message == "its agent was stopped"
    assert NoLauncher.started == []
