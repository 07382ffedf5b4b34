"""The code files kept in a training's checkpoints: exactly those that its module needs."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from determined.pytorch import _code

TRIAL = """
import torch
from determined import pytorch
import helper

class MyTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, helper.OUTPUTS))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
    def train_batch(self, batch, epoch_idx, batch_idx):
        self.context.backward(self.model(batch[0]).sum())
        self.context.step_optimizer(self.optimizer)
        return {}
    def evaluate_batch(self, batch, batch_idx):
        return {"loss": 0.0}
    def build_training_data_loader(self):
        return pytorch.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 1)), batch_size=2)
    build_validation_data_loader = build_training_data_loader
"""
SCRIPT = """
from model_def import MyTrial
from determined import pytorch

with pytorch.init(hparams={"global_batch_size": 2}) as context:
    pytorch.Trainer(MyTrial(context), context).fit(max_length=pytorch.Batch(2))
"""
LOAD = """
import sys
from determined import pytorch

print(type(pytorch.load_trial_from_checkpoint_path(sys.argv[1])).__name__)
"""


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], type]]:
    """Imports ``module:Class`` from ``tmp_path / "own"``, for the test alone."""
    before = set(sys.modules)

    def load(spec: str) -> type:
        monkeypatch.syspath_prepend(str(tmp_path / "own"))
        module, _, name = spec.partition(":")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]

    yield load
    for name in set(sys.modules) - before:
        del sys.modules[name]


def names(trial_class: type, submitted: Path | None = None) -> list[str]:
    return [name for name, _ in _code.files(trial_class, submitted)]


def test_a_script_off_the_cluster_keeps_its_modules_alone_and_they_load(tmp_path: Path) -> None:
    """Run from a project's top, where an environment, data and secrets lie beside the training."""
    project = tree(
        tmp_path / "project",
        **{
            "training/train.py": SCRIPT,
            "training/model_def.py": TRIAL,
            "training/helper.py": "OUTPUTS = 1\n",
            "training/unused.py": "",
            "training/.env": "PASSWORD=1\n",
            "training/data.bin": "1",
            ".env": "PASSWORD=1\n",
            ".venv/lib/python3/site-packages/other.py": "",
        },
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("DET_")}
    environment = {**own, "HOME": str(tmp_path / "home"), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*words: str) -> str:
        return subprocess.run(
            [sys.executable, *words],
            cwd=project, env=environment, check=True, text=True, capture_output=True,
        ).stdout  # fmt: skip

    run("training/train.py")
    (found,) = (tmp_path / "home").rglob("load_data.json")
    code = found.parent / "code"
    kept = sorted(p.relative_to(code).as_posix() for p in code.rglob("*") if p.is_file())
    assert kept == ["helper.py", "model_def.py"]
    assert json.loads(found.read_text())["trial_cls_spec"] == "model_def:MyTrial"
    (tmp_path / "load.py").write_text(LOAD)
    assert run(str(tmp_path / "load.py"), str(found.parent)) == "MyTrial\n"


def test_packages_imports_in_functions_and_dynamic_imports(
    tmp_path: Path, imported: Callable[[str], type]
) -> None:
    tree(
        tmp_path / "own",
        **{
            "kept_pkg/__init__.py": "",
            "kept_pkg/trial.py": "import importlib\nfrom . import base\nfrom .parts.net import Net\n"
            "importlib.import_module('kept_' + 'plugin')\n"
            "class T:\n    def later(self):\n        import kept_lazily, json\n",
            "kept_pkg/base.py": "",
            "kept_pkg/unused.py": "",
            "kept_pkg/parts/net.py": "class Net: ...\n",
            "kept_lazily.py": "",
            "kept_plugin.py": "",
            "json_like.py": "",
        },
    )
    assert names(imported("kept_pkg.trial:T")) == [
        "kept_lazily.py",
        "kept_pkg/__init__.py",
        "kept_pkg/base.py",
        "kept_pkg/parts/net.py",
        "kept_pkg/trial.py",
        "kept_plugin.py",
    ]


@pytest.mark.parametrize("ignore_file", [".gitignore", "own/.gitignore", "own/.detignore"])
def test_a_module_that_an_ignore_file_names_is_left_out_with_a_word(
    tmp_path: Path,
    imported: Callable[[str], type],
    ignore_file: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree(
        tmp_path,
        **{
            ".git/HEAD": "",
            ignore_file: "ignored_local.py\n",
            "own/ignoring.py": "import ignored_local\nclass T: ...\n",
            "own/ignored_local.py": "PASSWORD = 1\n",
        },
    )
    assert names(imported("ignoring:T")) == ["ignoring.py"]
    assert "without" in caplog.text
    assert str(tmp_path / "own" / "ignored_local.py") in caplog.text


def test_on_the_cluster_the_submitted_directory_is_kept_without_secrets(
    tmp_path: Path, imported: Callable[[str], type]
) -> None:
    own = tree(
        tmp_path / "own",
        **{
            "src/submitted_trial.py": "import submitted_part\nclass T: ...\n",
            "src/submitted_part.py": "",
            "vocabulary.txt": "a b c",
            "large.bin": "",
            ".detignore": "*.bin\n",
            ".gitignore": "vocabulary.txt\n",
            ".env": "PASSWORD=1\n",
            ".env.d/key": "1",
        },
    )
    sys.path.insert(0, str(own / "src"))
    try:
        found = names(imported("submitted_trial:T"), own)
    finally:
        sys.path.remove(str(own / "src"))
    # Once as submitted, and once where it can be imported from.
    assert found == [
        ".detignore",
        ".gitignore",
        "src/submitted_part.py",
        "src/submitted_trial.py",
        "submitted_part.py",
        "submitted_trial.py",
        "vocabulary.txt",
    ]


def test_of_a_directory_that_is_too_large_the_modules_are_kept(
    tmp_path: Path,
    imported: Callable[[str], type],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(_code, "MAX_FILES", 1)
    own = tree(tmp_path / "own", **{"large_trial.py": "class T: ...\n", "b.txt": ""})
    assert names(imported("large_trial:T"), own) == ["large_trial.py"]
    assert ".detignore" in caplog.text


def test_an_installed_class_is_not_training_code() -> None:
    assert names(pytest.Item) == []
