"""The messages of `make` for a Python that is too old and for a machine without a network."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.waiting import TIMEOUT_S

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "deployments/first_install.py"
PIP = [sys.executable, "-m", "pip", "--isolated", "--quiet", "--disable-pip-version-check"]


@pytest.fixture
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_install", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "pip", *PIP, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


def test_an_old_python_is_told_which_one_will_do(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program.check_python()
    monkeypatch.setattr(program, "OLDEST", (4, 1))
    # As pyenv's, where that version is not chosen.
    for name, code in (("python3.13", 127), ("python3.12", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho said >&2\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    here = "Python {}.{}".format(*sys.version_info[:2])
    with pytest.raises(SystemExit) as refused:
        program.check_python()
    words = (
        f"error: {here} is too old, at least 4.1 is needed: type the same with PYTHON=python3.12"
    )
    assert str(refused.value) == words
    (tmp_path / "python3.12").unlink()
    with pytest.raises(SystemExit, match=r"install one, e\.g\. python3\.11"):
        program.check_python()


def test_the_oldest_python_is_that_of_the_package(program: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">={}.{}".format(*program.OLDEST)


def test_an_old_python_can_read_it() -> None:
    found = [type(node) for node in ast.walk(ast.parse(PROGRAM.read_bytes()))]
    assert not {ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Match} & set(found)
    assert PROGRAM.read_text().isascii()


def test_without_a_network_one_line_says_so() -> None:
    done = pip("install", "--retries", "1", "-i", "http://127.0.0.1:9", "no-such-thing")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: pip reaches no package index (Connection refused)")


def test_other_errors_of_pip_are_left_alone(tmp_path: Path) -> None:
    done = pip("install", "--no-index", "--find-links", str(tmp_path), "no-such-thing")
    assert done.returncode == 1
    assert "No matching distribution found for no-such-thing" in done.stderr
    assert pip("--version").returncode == 0
