"""An agent finds out at its start how it can enforce limits, and logs this."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest

from determined_deployments.agent import leg_limits
from determined_deployments.agent.config import AgentConfig
from determined_tasks import leg_groups
from determined_tasks.leg_groups import GroupsUnavailable, LegGroup


def config(folder: Path, **limits: Any) -> AgentConfig:
    return AgentConfig.model_validate(
        {
            "agent_id": "a",
            "slots": 1,
            "master_url": "http://127.0.0.1:1",
            "agent_token": "t",
            "work_dir": folder,
            "limits": limits,
        }
    )


def test_without_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leg_groups, "MOUNT", tmp_path)
    limits = leg_limits.prepare(config(tmp_path, memory="1G", processes=99))
    assert (limits.processes, limits.memory, limits.homes) == (99, 1 << 30, ())
    (said,) = caplog.messages
    assert said.startswith(
        "each leg has at most 99 processes and threads, 1024 MiB of memory, 65536"
    )
    assert "without control groups (there is no " in said
    assert "processor time is not limited" in said


def test_with_control_groups(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    try:
        leg_groups.homes("determined-test")
    except GroupsUnavailable as error:
        pytest.skip(f"no control groups can be made here: {error}")
    finally:
        for home in leg_groups.MOUNT.rglob("determined-test"):
            home.rmdir()
    limits = leg_limits.prepare(config(tmp_path, cpus=1.5))
    if leg_groups.share_cpu(map(Path, limits.homes)):
        words = "processor time is divided by slots, and a leg computes on 1.5 processors at most"
        assert caplog.messages[0].endswith(words)
    assert limits.homes and "by control groups in " in caplog.messages[0]
    # Two legs of the previous agent; one goes on.
    left: dict[str, subprocess.Popen[bytes]] = {}
    for name in ("1.1", "1.2"):
        group = LegGroup.of(limits, name)
        group.make(limits)
        left[name] = subprocess.Popen(["sleep", "1000"], preexec_fn=group.enter)
    leg_limits.sweep(leg_limits.prepare(config(tmp_path)), ["1.2"])
    assert left["1.1"].wait() == -9
    assert caplog.messages[-1] == "ended what was left of 1.1"
    assert left["1.2"].poll() is None
    leg_limits.leave(limits)
    assert LegGroup.of(limits, "1.2").end() and left["1.2"].wait() == -9
    leg_limits.leave(limits)
    assert not any(Path(home).exists() for home in limits.homes)
