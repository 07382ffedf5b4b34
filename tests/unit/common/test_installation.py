"""The install commands in errors and docs."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from determined.__version__ import __version__
from determined.common import installation

ROOT = Path(__file__).parents[3]


class Recorded:
    """A distribution whose origin pip has recorded."""

    def __init__(self, origin: str | None, prefix: str = sys.prefix, record: str = "") -> None:
        self.texts = {"direct_url.json": origin, "RECORD": record}
        self.prefix = prefix

    def locate_file(self, name: str) -> Path:
        return Path(self.prefix, "lib", "python3", "site-packages", name)

    def read_text(self, name: str) -> str | None:
        return self.texts.get(name)


def installed(monkeypatch: pytest.MonkeyPatch, origin: object, *extras: str) -> list[str]:
    """The words after `install` in the message, if pip has recorded ``origin``."""
    text = origin if isinstance(origin, str | None) else json.dumps(origin)
    monkeypatch.setattr(metadata, "distribution", lambda name: Recorded(text))
    said = shlex.split(installation.command(*extras))
    return said[said.index("install") + 1 :]


def test_in_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "my code"
    folder.mkdir()
    origin = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    assert installed(monkeypatch, origin, "tpe") == ["-e", f"{folder}[tpe]"]
    pins = folder / "constraints.txt"
    pins.touch()
    said = installed(monkeypatch, origin, "cluster", "docker")
    assert said == ["-c", str(pins), "-e", f"{folder}[cluster,docker]"]
    origin["dir_info"] = {}
    assert installed(monkeypatch, origin, "tpe") == ["-c", str(pins), f"{folder}[tpe]"]


def test_from_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "a b.whl"
    origin = {"url": wheel.as_uri(), "archive_info": {"hash": "sha256=0"}}
    # The file is gone: pip uses the extras of the installed package.
    assert installed(monkeypatch, origin, "s3") == ["determined-prefect[s3]"]
    wheel.touch()
    assert installed(monkeypatch, origin, "s3") == [f"{wheel}[s3]"]


def test_two_builds_of_one_version_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def release(code: str, origin: object, *more: str) -> str:
        lines = [f"determined/x.py,sha256={code},3", *more, "determined/__pycache__/x.pyc,,"]
        found = Recorded(json.dumps(origin), record="\n".join(lines))
        monkeypatch.setattr(metadata, "distribution", lambda name: found)
        return installation.release()

    wheel = {"url": (tmp_path / "a.whl").as_uri(), "archive_info": {}}
    one = release("one", wheel)
    assert re.fullmatch(rf"{re.escape(__version__)}\+[0-9a-f]{{8}}", one)
    assert release("two", wheel) != one
    # The same build from another place, by another Python.
    there = [
        "determined_prefect-0.1.0.dist-info/direct_url.json,sha256=2,9",
        "../../bin/det,sha256=3,1",
    ]
    assert release("one", {"url": "https://host/a.whl", "archive_info": {}}, *there) == one
    checkout = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    assert release("one", checkout) == release("two", checkout) == __version__


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        (None, "determined-prefect[s3]"),
        ("{", "determined-prefect[s3]"),
        ([], "determined-prefect[s3]"),
        ({"url": "file:///no/such/folder", "dir_info": {}}, "determined-prefect[s3]"),
        (
            {"url": "https://host/d.whl", "archive_info": {}},
            "determined-prefect[s3] @ https://host/d.whl",
        ),
        (
            {"url": "https://host/d", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "determined-prefect[s3] @ git+https://host/d@abc",
        ),
    ],
)
def test_from_elsewhere(monkeypatch: pytest.MonkeyPatch, origin: object, said: str) -> None:
    assert installed(monkeypatch, origin, "s3") == [said]


def test_in_a_task_it_is_the_agents_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The task's own environment is on top of it, and ends with the task."""
    agents = tmp_path / "agents"
    (agents / "bin").mkdir(parents=True)
    (agents / "bin" / "python3").touch()
    task = tmp_path / "task"
    monkeypatch.setattr(sys, "prefix", str(task))
    monkeypatch.setattr(sys, "executable", str(task / "bin" / "python3"))
    monkeypatch.setattr(metadata, "distribution", lambda name: Recorded(None, str(agents)))
    assert installation.command("notebook").startswith(f"{agents}/bin/python3 -m pip install ")
    (agents / "bin" / "python3").unlink()
    assert installation.command("notebook").startswith(f"{task}/bin/python3 -m pip install ")


def test_the_pip_is_that_of_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    for folder in (here, other):
        folder.mkdir()
        (folder / "pip").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(here / "python"))
    monkeypatch.setenv("PATH", str(here))
    assert installation.command("s3").startswith("pip install ")
    monkeypatch.setenv("PATH", f"{other}:{here}")
    assert installation.command("s3").startswith(f"{here}/python -m pip install ")


def test_nothing_else_says_how_to_install_an_extra() -> None:
    """`pip install 'determined-prefect[…]'` finds nothing where the package is not installed yet."""
    folders = "harness searchers registry service tasks flows deployments docs examples benchmarks"
    sources = [path for name in folders.split() for path in (ROOT / name).rglob("*.[pm][yd]")]
    wrong = [
        str(path.relative_to(ROOT))
        for path in [*sources, ROOT / "README.md"]
        if re.search(r"determined-prefect[\"']?\[", path.read_text())
    ]
    assert wrong == []


def test_the_page_has_the_commands_of_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = (ROOT / "docs/start/install.md").read_text()
    (tmp_path / "constraints.txt").touch()
    origin = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    in_checkout = shlex.join(installed(monkeypatch, origin, "notebook"))
    command = in_checkout.replace(f"{tmp_path}/", "").replace(str(tmp_path), ".")
    assert f"pip install {command} " in page
    name = f"determined_prefect-{__version__}-py3-none-any.whl"
    (tmp_path / name).touch()
    origin = {"url": (tmp_path / name).as_uri(), "archive_info": {}}
    from_wheel = shlex.join(installed(monkeypatch, origin, "local"))
    assert f"pip install {from_wheel.replace(f'{tmp_path}/', '')}\n" in page


def test_the_page_names_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    section = (ROOT / "docs/start/install.md").read_text().split("## Extras")[1].split("\n## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    found = re.findall(r"`(\w+)`", " ".join(rows))
    assert sorted(found) == sorted(project["optional-dependencies"])
