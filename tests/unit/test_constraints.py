"""The installed versions, and the versions in constraints.txt."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def first_python() -> str:
    """The oldest Python that the project says it runs on, as a full version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (lowest,) = SpecifierSet(project["requires-python"])
    return f"{lowest.version}.0"


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in found}


def test_every_version_can_be_installed_on_the_oldest_python() -> None:
    """An impossible version makes pip search for another set of all others, for many minutes, without
    success."""
    oldest, refused = first_python(), []
    for name, pin in pins().items():
        try:
            metadata = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for other Pythons or machines
        wanted = metadata.get("Requires-Python") or ""
        is_pinned = pin.specifier.contains(metadata["Version"])
        if is_pinned and not SpecifierSet(wanted).contains(oldest):
            refused.append(f"{name} {metadata['Version']} wants Python {wanted}")
    assert not refused, f"Python {oldest}: {refused}"


def test_packages_for_the_oldest_python_have_a_version_too() -> None:
    oldest = {"python_full_version": first_python(), "python_version": first_python()[:4]}
    given = pins()
    missing = set()
    for name in given:
        try:
            wanted = map(Requirement, importlib.metadata.requires(name) or ())
        except importlib.metadata.PackageNotFoundError:
            continue
        missing |= {
            f"{name}: {one}"
            for one in wanted
            if one.marker is not None
            and "python" in str(one.marker)
            and one.marker.evaluate({**oldest, "extra": ""})
            and canonicalize_name(one.name) not in given
        }
    assert not missing
