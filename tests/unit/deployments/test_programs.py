"""An agent's report of programs that its machine lacks."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from determined.common.wire import shells
from determined_deployments.agent import programs
from determined_deployments.agent.launchers.docker.launcher import DockerLauncher
from determined_deployments.agent.launchers.fork_server.launcher import ForkServerLauncher


def test_missing_packages_have_an_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    found = programs.lacking()
    assert sorted(found) == ["jupyterlab", "sshd", "tensorboard"]
    assert "[notebook]" in found["jupyterlab"]
    assert "openssh-server" in found["sshd"]


def test_existing_names_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    asked: dict[str, str] = {}
    monkeypatch.setattr(shutil, "which", lambda name, path: asked.setdefault(name, path))
    assert programs.lacking() == {}
    assert sorted(asked) == sorted(shells.SSHD_PROGRAMS)
    assert all(path.endswith(shells.SSHD_FOLDERS) for path in asked.values())


def test_containers_keep_their_images_environment() -> None:
    assert DockerLauncher.lacks is not ForkServerLauncher.lacks


def test_what_is_installed_while_the_agent_runs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(programs.time, "monotonic", lambda: now)
    found = {"jupyterlab": "pip install x", "sshd": "apt install y"}
    watch = programs.ProgramWatch(lambda: dict(found))
    watch.registered({**found, "mounts": "no"})
    assert watch.untold() is None
    now += programs.LOOK_SECONDS
    assert watch.untold() is None  # looked, and nothing has changed
    del found["jupyterlab"]
    assert watch.untold() is None  # looked a moment ago
    now += programs.LOOK_SECONDS
    assert watch.untold() == found
    now += programs.LOOK_SECONDS
    assert watch.untold() == found  # the answer was lost
    watch.told(found)
    now += programs.LOOK_SECONDS
    assert watch.untold() is None
