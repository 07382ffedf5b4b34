"""Both launchers keep the contract; names of launchers are understood or refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from determined_deployments.agent.launchers import built_in
from determined_deployments.agent.launchers.fork_server.launcher import ForkServerLauncher
from determined_deployments.agent.launchers.testing import LauncherContract

SUBPROCESS = "tests.programs.agent.subprocess_launcher:SubprocessLauncher"


class TestForkServer(LauncherContract):
    @pytest.fixture
    def launcher_name(self) -> str:
        return "fork_server"


class TestSubprocesses(LauncherContract):
    @pytest.fixture
    def launcher_name(self, monkeypatch: pytest.MonkeyPatch) -> str:
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
        monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
        return SUBPROCESS


def test_a_launcher_is_found_by_name_or_place() -> None:
    assert built_in.load("fork_server") is ForkServerLauncher
    assert built_in.load(built_in.BUILT_IN["fork_server"]) is ForkServerLauncher


def test_a_launcher_whose_library_is_missing_says_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [one for one in sys.modules if ".launchers.kubernetes." in one]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)
    with pytest.raises(ValueError, match=r"kubernetes_asyncio.*install .*\[kubernetes\]"):
        built_in.load("kubernetes")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pods", "known are docker, fork_server, kubernetes"),
        ("absent_module:Launcher", "absent_module"),
        ("json:absent", "absent"),
        ("json:loads", "not a subclass of Launcher"),
    ],
)
def test_a_launcher_that_is_none_is_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        built_in.load(name)
