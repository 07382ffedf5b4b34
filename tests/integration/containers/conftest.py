"""A real Docker engine, and legs in its containers that report to a service double which records the
reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.docker.launcher import DockerLauncher
from determined_deployments.agent.launchers.testing_agent import no_model_definition
from determined_tasks.containers.settings import LABEL_WORK_DIR
from tests import container_engine
from tests.programs.legs.fake_service import FakeService
from tests.programs.legs.launched import LaunchedLegs, settings_of
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


class ContainerLegs(LaunchedLegs):
    """Of the Docker launcher; no leg leaves a container."""

    async def end(self, held: Held) -> dict[str, Any]:
        ended = await super().end(held)
        assert self.containers() == []
        return ended

    def containers(self) -> list[str]:
        return container_engine.containers(f"{LABEL_WORK_DIR}={self.config.work_dir}")


@pytest.fixture
def settings() -> dict[str, Any]:
    """``container`` of the agent's settings, on top of the tests' own; and ``security``, ``limits``."""
    return {}


@pytest.fixture
def agent_config(
    engine: None, service: FakeService, settings: dict[str, Any], tmp_path: Path
) -> AgentConfig:
    more = dict(settings)
    return settings_of(
        service,
        tmp_path / "work",
        launcher="docker",
        security=more.pop("security", {}),
        limits=more.pop("limits", {}),
        container={
            "images": {"cpu": container_engine.machine_image()},
            "harness": "mounted",
            **more,
        },
    )


@pytest_asyncio.fixture
async def legs(agent_config: AgentConfig, service: FakeService) -> AsyncIterator[ContainerLegs]:
    async with DockerLauncher(agent_config, no_model_definition) as launcher:
        await launcher.adopt()
        await asyncio.wait_for(launcher.ready(), TIMEOUT_S)
        made = ContainerLegs(launcher, service)
        yield made
        for name in made.containers():
            container_engine.remove(name)
