"""Trying a trial class out, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trials import SmallTrial

from determined import experimental, pytorch


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


def test_what_cannot_be_tried() -> None:
    with pytest.raises(TypeError, match="subclass of PyTorchTrial"):
        experimental.test_one_batch(int)  # type: ignore[arg-type]

    class Broken(SmallTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        experimental.test_one_batch(Broken, {"hyperparameters": {"global_batch_size": 4}})
