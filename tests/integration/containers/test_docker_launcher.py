"""The launcher of containers keeps the contract of launchers, on a real engine."""

from __future__ import annotations

import pytest

from determined_deployments.agent.launchers.testing import LauncherContract


@pytest.mark.usefixtures("engine")
class TestDocker(LauncherContract):
    @pytest.fixture
    def launcher_name(self) -> str:
        return "docker"
