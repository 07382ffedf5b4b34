"""``det init``"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from determined.common import examples, installation
from determined.common.examples import EXAMPLES
from tests.unit.cli.conftest import Det

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_without_a_template_they_are_listed(det: Det, there: Path) -> None:
    result = det("init")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["Template", *EXAMPLES]
    assert result.stderr.splitlines()[-1] == "next: det init TEMPLATE [FOLDER]"
    assert [one["name"] for one in json.loads(det("init", "--json").stdout)] == list(EXAMPLES)
    assert list(there.iterdir()) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_template_is_an_example(det: Det, there: Path, name: str) -> None:
    template = EXAMPLES[name]
    result = det("init", name)
    assert result.exit_code == 0, result.stderr
    written = {path.name: path.read_bytes() for path in (there / name).iterdir()}
    source = ROOT / "examples" / template.folder
    assert examples.folder() == ROOT / "examples"
    assert written == {file: (source / file).read_bytes() for file in template.files}
    assert result.stderr.splitlines()[-1] == f"next: det flow run {name}/{template.config} {name}"
    for file in (there / name).glob("*.yaml"):
        word = yaml.safe_load(file.read_text())["entrypoint"].split()[-1]
        script = word if word.endswith(".py") else f"{word.split(':')[0]}.py"
        assert script in template.files, file


def test_nothing_is_overwritten(det: Det, there: Path) -> None:
    (there / "mine").mkdir()
    assert det("init", "core", "mine").exit_code == 0  # it is empty
    before = {path: path.stat().st_mtime_ns for path in there.rglob("*")}
    (there / "a file").touch()
    for folder in ("mine", "a file"):
        result = det("init", "sklearn", folder)
        assert result.exit_code == 1
        assert f"error: {folder} is there already, and nothing is overwritten" in result.stderr
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_folder_with_a_space_can_be_typed(det: Det) -> None:
    last = det("init", "sklearn", "a b/c").stderr.splitlines()[-1]
    assert last == "next: det flow run 'a b/c/const.yaml' 'a b/c'"


def test_an_unknown_template(det: Det, there: Path) -> None:
    result = det("init", "corr")
    assert result.exit_code == 1
    assert "unknown template 'corr'; choose core, pytorch, " in result.stderr
    assert list(there.iterdir()) == []


def test_missing_parts_are_named(det: Det, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = det("init", "lightning").stderr
    needed = installation.command("examples", "lightning")
    assert f"train.py needs torch, sklearn, lightning, not installed here: {needed}\n" in said


def test_the_page_of_examples_has_every_folder_and_template() -> None:
    page = (ROOT / "examples/README.md").read_text()
    named = set(re.findall(r"\[(\w+)\]\(\w", page))
    tracked = {path.parent.name for path in (ROOT / "examples").glob("*/*.*")}
    assert tracked <= named
    for name, template in EXAMPLES.items():
        (row,) = (one for one in page.splitlines() if one.startswith(f"| [{template.folder}]"))
        assert f"| `{name}` |" in row
        assert f" examples/{template.folder}/" in row
