"""Settings that get their secrets from files, as pods start."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from determined_deployments.filled_settings import MissingSecret, fill


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "db-password").write_text("a/b@c\n")
    (folder / "agent-token").write_text("t0ken")
    return folder


def test_references_are_replaced_wherever_they_stand(secrets: Path) -> None:
    template = {
        "db_url": "postgresql://me:$(url:db-password)@host/db",
        "plain": ["$(db-password)", {"token": "$(agent-token)"}],
        "port": 8080,
        "no reference": "$db-password ${agent-token} $()",
    }
    assert fill(template, secrets) == {
        "db_url": "postgresql://me:a%2Fb%40c@host/db",
        "plain": ["a/b@c", {"token": "t0ken"}],
        "port": 8080,
        "no reference": "$db-password ${agent-token} $()",
    }


def test_all_missing_secrets_are_named(secrets: Path) -> None:
    with pytest.raises(MissingSecret, match="has no one, two: add the key"):
        fill(["$(two)", "$(one)", "$(agent-token)"], secrets)


def test_no_name_leaves_the_folder(secrets: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("secret")
    assert fill("$(../other)", secrets) == "$(../other)"


def test_the_process_becomes_the_command_and_the_file_is_private(
    secrets: Path, tmp_path: Path
) -> None:
    template, target = tmp_path / "settings.yaml", tmp_path / "filled.json"
    template.write_text("agent_token: $(agent-token)\n")
    module = [sys.executable, "-m", "determined_deployments.filled_settings"]
    show = "import os, sys; print(os.getpid(), open(sys.argv[1]).read())"
    process = subprocess.Popen(
        [*module, template, secrets, target, sys.executable, "-c", show, target],
        stdout=subprocess.PIPE,
        text=True,
    )
    said, _ = process.communicate()
    pid, _, content = said.partition(" ")
    assert int(pid) == process.pid
    assert json.loads(content) == {"agent_token": "t0ken"}
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_mistake_is_one_line(secrets: Path, tmp_path: Path) -> None:
    template = tmp_path / "settings.yaml"
    template.write_text("agent_token: $(agent-tokem)\n")
    module = [sys.executable, "-m", "determined_deployments.filled_settings"]
    done = subprocess.run(
        [*module, template, secrets, tmp_path / "filled"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "has no agent-tokem" in done.stderr and "Traceback" not in done.stderr
