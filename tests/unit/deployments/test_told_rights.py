"""The lists that an agent of containers sends to the service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from determined.common.wire.agents import ContainerRights
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.docker import settings


def told(**security: Any) -> ContainerRights:
    given = {
        "agent_id": "a",
        "agent_token": "x",
        "master_url": "http://m:1",
        "work_dir": "/w",
        "slots": 1,
    }
    return settings.rights(AgentConfig.model_validate({**given, "security": security}))


def test_a_listed_link_is_shown_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    lists = {"capabilities": ["SYS_PTRACE"], "devices": ["/dev/fuse"], "host_paths": [str(link)]}
    found = told(containers=lists)
    assert found.host_paths == [str(link), str(tmp_path / "real")]
    assert (found.capabilities, found.devices) == (["SYS_PTRACE"], ["/dev/fuse"])


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts tasks under other accounts")
def test_whose_the_containers_processes_are_is_told() -> None:
    assert told().is_root
    assert not told(default_task={"uid": 4321, "gid": 4321}).is_root
    assert told(default_task={"uid": 0, "gid": 0}, allow_root=True).is_root
