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
