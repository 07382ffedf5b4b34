"""Trying a trial class out, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trials import SmallTrial
from typer.testing import CliRunner, Result

from determined import experimental, pytorch
from determined.cli.root import app


def test_one_batch_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    calls: list[str] = []

    class Watched(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            assert context.get_hparams() == {
                "global_batch_size": 4,
                "lr": 0.001,
                "nested": {"width": 2, "kind": "a"},
            }

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            calls.append("train")
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch: Any, *args: Any) -> Any:
            calls.append("validate")
            return super().evaluate_batch(batch, *args)

        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            class Stored(pytorch.PyTorchCallback):
                def on_checkpoint_upload_end(self, uuid: str) -> None:
                    calls.append("checkpoint")

            return {"stored": Stored()}

    config = {
        "hyperparameters": {
            "global_batch_size": 4,
            "lr": {"type": "log", "base": 10, "minval": -3, "maxval": -1},
            "nested": {
                "width": {"type": "int", "minval": 2, "maxval": 8},
                "kind": {"type": "categorical", "vals": ["a", "b"]},
            },
        }
    }
    experimental.test_one_batch(Watched, config)
    assert sorted(calls) == ["checkpoint", "train", "validate"]
    assert not list(tmp_path.glob("determined-test-*"))


def test_untestable_storages() -> None:
    with pytest.raises(TypeError, match="subclass of PyTorchTrial"):
        experimental.test_one_batch(int)  # type: ignore[arg-type]

    class Broken(SmallTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        experimental.test_one_batch(Broken, {"hyperparameters": {"global_batch_size": 4}})


CONFIG = """
name: here
entrypoint: {entrypoint}
hyperparameters: {{width: {{type: int, minval: 3, maxval: 9}}}}
searcher: {{name: random, metric: loss, max_trials: 5, max_length: {{batches: 100}}}}
environment: {{environment_variables: ["WORD=a=b"]}}
"""
MODEL = """
import os
from pathlib import Path

import torch
from determined import pytorch

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        print("found", sorted(map(str, Path().rglob("*.*"))), os.environ["WORD"], context.get_hparam("width"))
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self):
        return pytorch.DataLoader(torch.ones(8, 1), batch_size=2)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch).sum()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        print("trained", batch_idx)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"loss": self.model(batch).sum()}
"""


def create(folder: Path, entrypoint: str, *args: str) -> Result:
    model = folder / "model"
    (model / "data").mkdir(parents=True, exist_ok=True)
    (model / "model_def.py").write_text(MODEL)
    (model / "data" / "large.bin").write_text("not sent")
    (model / ".detignore").write_text("data/")
    (folder / "util.py").write_text("")
    (folder / "c.yaml").write_text(CONFIG.format(entrypoint=entrypoint))
    files = [str(folder / "c.yaml"), str(model), "-i", str(folder / "util.py")]
    # Without a cluster no request is sent.
    return CliRunner().invoke(app, ["-m", "http://127.0.0.1:9", "e", "create", *files, *args])


@pytest.mark.parametrize(
    "entrypoint",
    [
        "model_def:Trial",
        "python3 -m determined.launch.torch_distributed --trial model_def:Trial",
        "[python3, -m, determined.launch.horovod, --trial=model_def:Trial]",
    ],
)
def test_local_trains_one_batch_of_the_submission(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], entrypoint: str
) -> None:
    result = create(tmp_path, entrypoint, "--local", "--test")

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("test: passed; one batch of model_def:Trial")
    said = capfd.readouterr().out
    assert "found ['.detignore', 'model_def.py', 'util.py'] a=b 3" in said
    assert said.count("trained") == 1


def test_local_says_why_it_cannot(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = create(tmp_path, "model_def:Tria", "--local", "-t")
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert wrong.stderr == "error: the test failed: the process exited with code 78\n"
    assert "did you mean Trial?" in capfd.readouterr().err
    program = create(tmp_path, "python3 train.py", "--local", "--test")
    assert program.exit_code == 1
    assert "run it here yourself (python3 train.py;" in program.stderr
    for args in (["--local"], ["--local", "--test", "--template", "t"]):
        assert "--local goes with --test" in create(tmp_path, "model_def:Trial", *args).stderr
