"""Processes of this machine keep the contract of carriers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from determined.common.api.errors import APIException
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.fork_server import plans
from determined_deployments.agent.launchers.fork_server.launcher import ForkServerLauncher
from tests.programs.legs.contract import CarrierContract
from tests.programs.legs.fake_service import FakeService
from tests.programs.legs.launched import LaunchedLegs, lose, settings_of
from tests.waiting import TIMEOUT_S


async def fetch(model_def_hash: str) -> bytes:
    raise APIException("the launcher looks at no code here")


class TestProcesses(CarrierContract):
    outlives = False

    def lose(self, held: Held) -> None:
        lose(held)

    @pytest_asyncio.fixture
    async def legs(
        self, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[LaunchedLegs]:
        # Its import takes seconds, and nothing here is about it.
        monkeypatch.setattr(plans, "TRIAL_OPTIONAL", [])
        config = settings_of(service, tmp_path / "agent")
        async with ForkServerLauncher(config, fetch) as launcher:
            await launcher.adopt()
            await asyncio.wait_for(launcher.ready(), TIMEOUT_S)
            yield LaunchedLegs(launcher, service)
