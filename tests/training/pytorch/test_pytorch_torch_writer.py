"""The writer that model code of earlier releases makes for itself."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from determined.core._tensorboard import TensorboardFiles, local_directory
from determined.storage import build
from determined.tensorboard.metric_writers import pytorch


def test_held_back_records_are_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("RANK", "1")
    trial = types.SimpleNamespace(allocation_id="1.2")
    monkeypatch.setattr(pytorch, "get_cluster_info", lambda: trial)
    storage = build({"type": "directory", "container_path": str(tmp_path / "storage")})
    tensorboard = TensorboardFiles(local_directory("1.2", 1), storage, "tb", automatic=True, rank=1)
    with pytest.warns(FutureWarning, match="get_tensorboard_writer"):
        writer = pytorch.TorchWriter()
    writer.add_scalar("mine", 0.5, 3)
    writer.writer.add_text("said", "x", 3)
    tensorboard.close()
    (file,) = (tmp_path / "storage/tb").iterdir()
    assert file.name.endswith("#1")
    (point,) = EventAccumulator(str(file)).Reload().Scalars("mine")
    assert (point.step, point.value) == (3, 0.5)


def test_off_the_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.warns(FutureWarning):
        writer = pytorch.TorchWriter()
    writer.add_scalar("mine", 0.5, 3)
    writer.reset()
    assert len(list(tmp_path.glob("*/events.out.tfevents.*"))) == 1
