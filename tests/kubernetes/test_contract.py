"""The contract of launchers over Kubernetes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.testing import LauncherContract
from tests.kubernetes.conftest import NODES_ARE_HERE, VERSIONS, Target
from tests.waiting import until


@pytest.mark.parametrize("target", VERSIONS, indirect=True, scope="session")
class TestKubernetes(LauncherContract):
    @pytest.fixture(autouse=True)
    def where(self, target: Target) -> Iterator[None]:
        if target.standin is None and not NODES_ARE_HERE:
            pytest.skip(
                "the contract's jobs write files that the tests read: DET_TEST_NODES_ARE_HERE=1"
            )
        yield
        # Other tests look at the whole namespace.
        until("nothing is left", target.left, equals=[])

    @pytest.fixture
    def launcher_name(self) -> str:
        return "kubernetes"

    @pytest.fixture
    def agent_config(self, launcher_name: str, tmp_path: Path, target: Target) -> AgentConfig:
        service = "http://127.0.0.1:1"
        given = {
            # A later agent of this name would take over what a failed test left.
            "agent_id": f"contract-{zlib.crc32(str(tmp_path).encode()):x}",
            "master_url": service,
            "agent_token": "secret",
            "work_dir": tmp_path / "work",
            "launcher": launcher_name,
            "container": {"images": {"cpu": target.image}, "master_url": service},
            "kubernetes": target.settings(tmp_path, max_slots=8),
        }
        return AgentConfig.model_validate(given)
