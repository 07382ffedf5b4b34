"""The imports named in a program's source."""

from __future__ import annotations

from pathlib import Path

import pytest

from determined_tasks import static_imports


def write(folder: Path, **files: str) -> None:
    """``name="text"``; two underscores stand for a slash."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python3 train.py --lr 1",
        "python3 -u train.py",
        "python3 -m train",
        ["python3", "train.py"],
        "python3 -m determined.launch.torch_distributed -- python3 train.py",
        "python3 -m determined.launch.torch_distributed --trial train:Model",
        "train:Model",
    ],
)
def test_forms_of_entrypoints(tmp_path: Path, entrypoint: str | list[str]) -> None:
    write(tmp_path, train="import os, sklearn.datasets as data\nfrom torch import nn")
    assert static_imports.read(entrypoint, tmp_path) == ["sklearn.datasets", "torch", "torch.nn"]


@pytest.mark.parametrize("entrypoint", ["./run.sh", "echo $HOME; ls", "python3 -c 'import x'", []])
def test_an_invalid_python_file_names_no_imports(
    tmp_path: Path, entrypoint: str | list[str]
) -> None:
    write(tmp_path, train="import torch")
    assert static_imports.read(entrypoint, tmp_path) == []


def test_own_modules_are_followed_and_not_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        src__train="import model\nimport shared.tools\nimport late",
        src__model="import torch\nimport train",  # round in a circle
        shared____init__="import numpy",
        shared__tools="import pandas",
    )
    found = static_imports.read("python3 src/train.py", tmp_path)
    assert found == ["torch", "pandas", "late"]


def test_imports_that_depend_on_something_are_left_out(tmp_path: Path) -> None:
    write(
        tmp_path,
        train="""
import typing
try:
    import apex
except ImportError:
    apex = None
if typing.TYPE_CHECKING:
    import pandas
def main():
    import matplotlib
from . import sibling
from numpy import *
""",
    )
    assert static_imports.read("python3 train.py", tmp_path) == ["numpy"]


@pytest.mark.parametrize("text", ["import (", "\0", "\xff" * 3, "(" * 5000])
def test_an_unreadable_source_names_no_imports(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text, encoding="latin-1")
    assert static_imports.read("python3 train.py", tmp_path) == []
    assert static_imports.read("python3 absent.py", tmp_path) == []


def test_a_module_that_is_not_the_programs_own_names_nothing(tmp_path: Path) -> None:
    assert static_imports.read("python3 -m determined.evaluation", tmp_path) == []
