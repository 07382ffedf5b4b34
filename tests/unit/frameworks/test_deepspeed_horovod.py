"""What is there without DeepSpeed and Horovod, and what the rest says."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from determined import core
from determined.pytorch import deepspeed


def test_configurations_are_merged(tmp_path: Path) -> None:
    base = {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.1, "eps": 1}}}
    source = {"optimizer": {"params": {"lr": 0.2}}, "fp16": {"enabled": True}}
    merged = deepspeed.overwrite_deepspeed_config(base, source)
    assert merged == {
        "train_batch_size": 8,
        "optimizer": {"type": "Adam", "params": {"lr": 0.2, "eps": 1}},
        "fp16": {"enabled": True},
    }
    assert base["optimizer"]["params"]["lr"] == 0.1  # type: ignore[index]
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(base))
    assert deepspeed.overwrite_deepspeed_config(str(path), source) == merged
    with pytest.raises(TypeError, match="found list"):
        deepspeed.overwrite_deepspeed_config([], {})  # type: ignore[arg-type]


def test_places_in_a_topology() -> None:
    with core.DummyDistributedContext() as dist:
        assert deepspeed.make_data_parallel_mpu(dist) == deepspeed.ModelParallelUnit(
            0, 1, True, True
        )

    def grid(stage: int, slice_rank: int) -> Any:
        return types.SimpleNamespace(
            get_pipe_parallel_rank=lambda: stage,
            get_pipe_parallel_world_size=lambda: 3,
            get_data_parallel_rank=lambda: 1,
            get_data_parallel_world_size=lambda: 2,
            get_slice_parallel_rank=lambda: slice_rank,
        )

    reads = {
        (stage, part): deepspeed.make_deepspeed_mpu(grid(stage, part)).should_build_data_loader
        for stage in range(3)
        for part in range(2)
    }
    assert [place for place, builds in reads.items() if builds] == [(0, 0), (2, 0)]


def test_the_trial_class_says_what_to_use() -> None:
    with pytest.raises(ImportError, match=r"DeepSpeedTrial is not in this release.*DetCallback"):
        from determined.pytorch.deepspeed import DeepSpeedTrial  # type: ignore[attr-defined] # noqa: F401


def test_horovod_that_is_not_installed() -> None:
    if importlib.util.find_spec("horovod") is not None:
        pytest.skip("horovod is installed")
    with pytest.raises(ImportError, match=r"torch_distributed instead, or install horovod"):
        importlib.import_module("determined.horovod")


def test_horovod_of_one_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("horovod.torch")
    fake.size = lambda: 3
    package = types.ModuleType("horovod")
    package.__spec__ = importlib.util.spec_from_loader("horovod", None)
    monkeypatch.setitem(sys.modules, "horovod", package)
    monkeypatch.setitem(sys.modules, "horovod.torch", fake)
    monkeypatch.delitem(sys.modules, "determined.horovod", raising=False)
    hvd = importlib.import_module("determined.horovod").hvd
    del sys.modules["determined.horovod"]  # for good: it has the stand-in
    with pytest.raises(RuntimeError, match="require_horovod_type"):
        hvd.size()
    with pytest.raises(ValueError, match="one of torch, tensorflow"):
        hvd.require_horovod_type("jax", "no reason")
    hvd.require_horovod_type("torch", "the model is of torch")
    assert hvd.size() == 3
    with pytest.raises(ValueError, match="the model is of torch"):
        hvd.require_horovod_type("tensorflow", "something else")
