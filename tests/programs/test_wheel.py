"""The contents of our wheel: exactly the files of the checkout's packages."""

from __future__ import annotations

import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from determined.common.examples import EXAMPLES
from tests.wheels import ROOT, ours


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(ours(tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def names(wheel: zipfile.ZipFile) -> set[str]:
    """Its files, without the wheel's metadata."""
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_it_holds_the_packages_and_the_templates(names: set[str]) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    target = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    places = {name: Path(name).name for name in target["packages"]} | target["force-include"]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *places], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("the tree is no clone of git's")
    expected = set()
    for path in filter(None, listed.stdout.split("\0")):
        place = next(name for name in places if path == name or path.startswith(f"{name}/"))
        if (ROOT / path).exists():
            expected.add(places[place] + path.removeprefix(place))
    assert expected <= names
    # Uncommitted files are included, too, but no files from elsewhere.
    assert {name.split("/")[0] for name in names} == {Path(one).name for one in target["packages"]}
    assert [name for name in names if name.endswith((".pyc", ".so")) or "/." in name] == []


def test_files_that_runs_need_besides_code_exist(names: set[str]) -> None:
    assert {
        "determined_deployments/prefect.yaml",
        "determined_service/plots/page.html",
        "determined_registry/database/migrations/script.py.mako",
    } <= names
    assert any(
        name.startswith("determined_registry/database/migrations/versions/") for name in names
    )
    for template in EXAMPLES.values():
        assert {f"determined/examples/{template.folder}/{file}" for file in template.files} <= names


def test_it_knows_its_extras_and_its_oldest_python(wheel: zipfile.ZipFile) -> None:
    (name,) = (one for one in wheel.namelist() if one.endswith(".dist-info/METADATA"))
    metadata = wheel.read(name).decode().split("\n\n")[0].splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {line.split(": ")[1] for line in metadata if line.startswith("Provides-Extra: ")}
    assert found == set(project["optional-dependencies"])
    assert f"Requires-Python: {project['requires-python']}" in metadata
