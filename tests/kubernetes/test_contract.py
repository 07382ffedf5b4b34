"""The contract of launchers over Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest

from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.testing import LauncherContract
from tests.kubernetes.conftest import NODES_ARE_HERE, Target


class TestKubernetes(LauncherContract):
    @pytest.fixture(autouse=True)
    def where(self, target: Target) -> None:
        if target.standin is None and not NODES_ARE_HERE:
            pytest.skip(
                "the contract's jobs write files that the tests read: DET_TEST_NODES_ARE_HERE=1"
            )

    @pytest.fixture
    def launcher_name(self) -> str:
        return "kubernetes"

    @pytest.fixture
    def agent_config(self, launcher_name: str, tmp_path: Path, target: Target) -> AgentConfig:
        given = {
            "agent_id": f"contract-{abs(hash(tmp_path.name)) % 10**8}",
            "master_url": "http://127.0.0.1:1",
            "agent_token": "secret",
            "work_dir": tmp_path / "work",
            "slot_type": "cpu",
            "launcher": launcher_name,
            "container": {
                "images": {"cpu": target.image},
                "master_url": "http://127.0.0.1:1",
            },
            "kubernetes": target.settings(max_slots=8),
        }
        return AgentConfig.model_validate(given)
