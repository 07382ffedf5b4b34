"""The shell's offers after TAB, and their installation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from determined.cli import completion
from determined.cli.root import app
from determined.cli.state import State
from determined.common.api.token_store import TokenStore
from tests.unit.sdk.fake_service import URL, FakeService, Refused, checkpoint, experiment, trial
from tests.waiting import TIMEOUT_S

Offer = Callable[[str], list[str]]


@pytest.fixture
def offer(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """The words that bash gets for a line; its last word is being typed."""
    monkeypatch.delenv("DET_USER")
    monkeypatch.delenv("DET_PASS")
    TokenStore().set_token(URL, "ann", service.token_for("ann"))

    def offered(line: str, shell: str = "bash") -> list[str]:
        words = line.split(" ")
        result = CliRunner().invoke(
            app,
            [],
            obj=State(transport=service.transport),
            prog_name="det",
            env={
                "_DET_COMPLETE": f"complete_{shell}",
                "COMP_WORDS": line,
                "COMP_CWORD": str(len(words) - 1),
                "_TYPER_COMPLETE_ARGS": line,
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            },
        )
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return [word for word in result.stdout.splitlines() if word]

    return offered


def test_commands_by_their_whole_names(offer: Offer) -> None:
    assert offer("det exp") == ["experiment"]
    assert {"experiment", "trial", "deploy", "version"} <= set(offer("det "))
    assert offer("det e list-") == ["list-trials", "list-checkpoints"]
    # `det e` alone lists, but TAB asks for commands.
    assert {"create", "list", "kill", "label"} <= set(offer("det e "))
    assert set(offer("det e label ")) == {"add", "remove"}
    assert "--show_project" in offer("det e list --")
    assert not [word for word in offer("det ") if "|" in word]


def test_ids_and_names(offer: Offer, service: FakeService) -> None:
    service.experiments = {n: experiment(n, name=f"n{n}") for n in (7, 12, 13)}
    service.trials[7] = [trial(3, experimentId=7), trial(4, experimentId=7)]
    service.checkpoints = [checkpoint("u-1", 3, 0.5)]
    service.agents = [{"id": "agent-1", "slots": {}}]
    for line in ("det e describe ", "det e kill ", "det experiment logs ", "det e set name "):
        assert offer(line) == ["7", "12", "13"], line
    assert offer("det e kill 1") == ["12", "13"]
    assert offer("det e kill 12,1") == ["12,12", "12,13"]
    assert offer("det t logs ") == ["3", "4"]
    assert "u-1" in offer("det c download u")
    assert offer("det user login a") == ["ann"]
    assert offer("det t logs 3 --agent-id ") == ["agent-1"]
    assert service.called("POST", "/api/v1/auth/login") == 0


def test_zsh_and_fish_describe_the_ids(offer: Any, service: FakeService) -> None:
    service.experiments = {7: experiment(7, "RUNNING", name="digits")}
    assert offer("det e kill ", "fish") == ["7\tdigits running"]
    assert '"7":"digits running"' in "".join(offer("det e kill ", "zsh"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_hostile_names_reach_no_shell(offer: Any, service: FakeService, shell: str) -> None:
    evil = "a\x1b]0;x\x07\\$(touch /tmp/x)`id`';\"\n\u202e|[red]*"
    service.experiments = {7: experiment(7, name=evil * 100)}
    service.passwords = {f"u{evil}": "", "ann": "", "-rf": ""}
    shown = "\n".join(offer("det e kill ", shell) + offer("det user login ", shell))
    assert "7" in shown
    assert "ann" in shown
    assert "-rf" not in shown
    ours = "_arguments '*: :((" if shell == "zsh" else ""
    rest = shown.replace(ours, "") if ours else shown
    for char in "\x1b\x07\\$`;|[*\u202e":
        assert char not in rest, repr(char)
    assert len(shown) < 500


def test_silent_where_the_service_does_not_help(
    offer: Offer, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.experiments = {7: experiment(7)}
    service.away = True
    assert offer("det e kill ") == []
    service.away = False
    service.tokens.clear()
    assert offer("det e kill ") == []

    def refuse(request: httpx.Request, *_: str) -> Any:
        raise Refused(500, "no")

    service.routes.insert(0, ("GET", r"/api/v1/experiments", refuse))
    assert offer("det e kill ") == []
    TokenStore().drop(URL)
    assert offer("det e kill ") == []
    monkeypatch.setenv("DET_MASTER", "http://")
    assert offer("det e kill ") == []


def test_a_slow_service_is_not_waited_for(
    offer: Offer, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.experiments = {n: experiment(n) for n in (1, 2, 3)}
    service.trials[1] = [trial(9)]
    monkeypatch.setattr(completion, "PATIENCE_S", 0.0)
    assert offer("det t logs ") == []
    assert service.calls == []


def test_the_options_before_the_command_count(offer: Offer, service: FakeService) -> None:
    service.experiments = {7: experiment(7)}
    assert offer(f"det -m {URL} -u ann e kill ") == ["7"]
    assert offer("det -m http://other:1 e kill ") == []
    assert offer("det -u bob e kill ") == []


def run(*args: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from determined.cli import main; main()", *args],
        env={**os.environ, "HOME": str(home), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".bash_completions/{name}.sh"),
        ("zsh", ".zfunc/_{name}"),
        ("fish", ".config/fish/completions/{name}.fish"),
    ],
)
def test_installing(tmp_path: Path, shell: str, file: str) -> None:
    # The shell is found by the parent processes otherwise; -c is the program's name here.
    chosen = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = run("--install-completion", shell, home=tmp_path, **chosen)
    assert done.returncode == 0, done.stderr
    assert f"{shell} completion installed" in done.stdout
    assert (tmp_path / file.format(name="-c")).is_file()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_real_bash(tmp_path: Path) -> None:
    det = tmp_path / "det"
    det.write_text(f"#!{sys.executable}\nfrom determined.cli import main\nmain()\n")
    det.chmod(0o755)
    script = (
        'eval "$(_DET_COMPLETE=source_bash det)"; COMP_WORDS=(det experiment list-t); COMP_CWORD=2; '
        '_det_completion det; echo "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert (done.stdout, done.stderr) == ("list-trials\n", "")
