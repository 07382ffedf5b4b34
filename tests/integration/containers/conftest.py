"""A real Docker engine, and legs in containers of it that report to a service which only writes down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from determined.common.wire.legs import LegSpec
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.base import Call, Exit, Job
from determined_deployments.agent.launchers.docker.launcher import DockerLauncher
from determined_deployments.agent.launchers.testing_agent import no_model_definition
from determined_tasks.containers.settings import LABEL_WORK_DIR
from tests import container_engine
from tests.programs.legs.fake_service import FakeService, archive, spec
from tests.waiting import TIMEOUT_S


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    with container_engine.running() as problem:
        if problem is not None:
            pytest.skip(problem)
        yield


@pytest.fixture
def service() -> Iterator[FakeService]:
    service = FakeService()
    yield service
    service.close()


class ContainerLegs:
    """Legs by way of one launcher, as an agent starts them."""

    def __init__(self, launcher: DockerLauncher, service: FakeService) -> None:
        self.launcher = launcher
        self.service = service
        self.config = launcher.config

    def job(
        self, files: dict[str, str | bytes], config: dict[str, Any] | None = None, **fields: Any
    ) -> Job:
        self.service.model_defs["d1"] = archive(files)
        order = spec(config={"name": "test", **(config or {})}, **fields)
        place = {
            "work_dir": str(self.config.work_dir),
            "master": self.config.master_url,
            "agent_token": "secret",
            "agent_id": self.config.agent_id,
            "compiled_bytes": self.config.compiled_code,
            **self.config.security_of_tasks(),
        }
        leg = LegSpec.from_json(order)
        call = Call("determined_tasks.leg:supervise", {"spec": order, "place": place})
        return Job("leg", leg.allocation_id, call, leg=leg)

    async def start(self, files: dict[str, str | bytes], *args: Any, **fields: Any) -> Held:
        return Held(self.launcher, await self.launcher.start(self.job(files, *args, **fields)))

    async def run(self, files: dict[str, str | bytes], *args: Any, **fields: Any) -> dict[str, Any]:
        """Runs a leg to its end; the exit that was reported."""
        held = await self.start(files, *args, **fields)
        ended = await asyncio.wait_for(held.ended, TIMEOUT_S)
        assert ended == Exit(code=0)
        await held.clean_up()
        assert self.containers() == []
        return self.service.exits[held.running.id]

    def containers(self) -> list[str]:
        return container_engine.containers(f"{LABEL_WORK_DIR}={self.config.work_dir}")

    def said(self) -> str:
        """The agent's lines in the log."""
        return "".join(line["log"] for line in self.service.logs if line["source"] == "agent")


@pytest.fixture
def settings() -> dict[str, Any]:
    """``container`` of the agent's settings, on top of the tests' own; and ``security``, ``limits``."""
    return {}


@pytest.fixture
def agent_config(
    engine: None, service: FakeService, settings: dict[str, Any], tmp_path: Path
) -> AgentConfig:
    more = dict(settings)
    return AgentConfig.model_validate(
        {
            "agent_id": "agent-1",
            "slots": 2,
            "master_url": service.url,
            "agent_token": "secret",
            "work_dir": tmp_path / "work",
            "launcher": "docker",
            "security": more.pop("security", {}),
            "limits": more.pop("limits", {}),
            "container": {
                "images": {"cpu": container_engine.machine_image()},
                "harness": "mounted",
                **more,
            },
        }
    )


@pytest_asyncio.fixture
async def legs(agent_config: AgentConfig, service: FakeService) -> AsyncIterator[ContainerLegs]:
    agent_config.work_dir.mkdir(parents=True, exist_ok=True)
    async with DockerLauncher(agent_config, no_model_definition) as launcher:
        await launcher.adopt()
        await asyncio.wait_for(launcher.ready(), TIMEOUT_S)
        made = ContainerLegs(launcher, service)
        yield made
        for name in made.containers():
            container_engine.remove(name)
