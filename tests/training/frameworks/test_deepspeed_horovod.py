"""The names that exist without DeepSpeed and Horovod, and the errors of the rest."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from determined import core
from determined.common import installation
from determined.pytorch import deepspeed
from determined.pytorch.deepspeed import _loop, _validation


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


@pytest.mark.parametrize("name", ["DeepSpeedTrial", "DeepSpeedTrialContext", "Trainer", "init"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    words = re.escape(
        f"deepspeed.{name} needs the package deepspeed: {installation.command('deepspeed')}"
    )
    with pytest.raises(ImportError, match=words):
        exec(f"from determined.pytorch.deepspeed import {name}")
    with pytest.raises(AttributeError, match="no attribute 'DeepSpeedTrail'"):
        _ = deepspeed.DeepSpeedTrail


def test_metrics_of_micro_batches() -> None:
    outputs = [
        {"loss": torch.tensor(1.0), "rows": np.array([0, 2]), "n": 1, "word": "a"},
        {"loss": torch.tensor(2.0), "rows": np.array([2, 2]), "n": 4, "word": "b", "once": 7},
    ]
    found = _loop.mean(outputs)
    assert (found["loss"], found["n"], found["word"], found["once"]) == (1.5, 2.5, "b", 7)
    assert found["rows"].tolist() == [1, 2]
    assert _loop.mean(outputs[:1]) is outputs[0]
    assert _loop.mean([]) == {}


def test_records_are_counted_where_they_are_read() -> None:
    batches = _validation.Counted(iter([[1, 2], [3], [4, 5, 6]]), len)
    assert [next(batches), next(batches)] == [[1, 2], [3]]
    assert batches.taken() == 3
    assert batches.taken() == 1
    assert list(batches) == [[4, 5, 6]]
    assert batches.taken() == 3


def test_the_environment_of_deepspeeds_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    given = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_SIZE": 1}
    for name, value in {**given, "CROSS_RANK": 0, "CROSS_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    with core.DistributedContext.from_deepspeed(chief_ip="127.0.0.1") as dist:
        assert (dist.size, dist.local_size, dist.cross_size) == (1, 1, 1)
    monkeypatch.delenv("LOCAL_SIZE")
    with pytest.raises(RuntimeError, match="not started by deepspeed: LOCAL_WORLD_SIZE"):
        core.DistributedContext.from_deepspeed()


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
