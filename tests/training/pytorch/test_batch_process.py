"""Batch inference: every batch exactly once, also after interruptions, in one process and in two."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from determined import core
from determined.pytorch.experimental import (
    TorchBatchProcessor,
    TorchBatchProcessorContext,
    get_default_device,
    torch_batch_process,
)
from tests.training.frameworks.one_trial import OneTrial


class Numbers(Dataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def recorder(seen: list[Any], at: Any = lambda batch_idx: None) -> type[TorchBatchProcessor]:
    """A class that notes its calls in ``seen``, and writes each batch to a file."""

    class Recorder(TorchBatchProcessor):
        def __init__(self, context: TorchBatchProcessorContext) -> None:
            self.context = context
            self.total = context.wrap_reducer(sum, name="total")
            seen.append("init")

        def process_batch(self, batch: Any, batch_idx: int) -> None:
            at(batch_idx)
            seen.append((batch_idx, batch.tolist()))
            self.total.update(int(batch.sum()))  # type: ignore[attr-defined]
            with self.context.upload_path() as path:
                (path / f"batch_{batch_idx}").write_text(str(batch.tolist()))

        def on_checkpoint_start(self) -> None:
            seen.append("checkpoint")

        def on_finish(self) -> None:
            seen.append("finish")

    return Recorder


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneTrial:
    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path / "run"))
    return OneTrial(tmp_path / "storage")


def process(
    trial: OneTrial, monkeypatch: pytest.MonkeyPatch, cls: Any, count: int = 7, **options: Any
) -> None:
    """One leg on a cluster."""
    monkeypatch.setattr(core, "init", lambda distributed: trial.leg())
    torch_batch_process(cls, Numbers(count), batch_size=2, **options)


def test_order_checkpoints_metrics_and_files(
    trial: OneTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    process(trial, monkeypatch, recorder(seen), checkpoint_interval=3)
    batches = [(0, [0, 1]), (1, [2, 3]), (2, [4, 5]), (3, [6])]
    assert seen == ["init", *batches[:3], "checkpoint", batches[3], "checkpoint", "finish"]
    assert trial.checkpoints() == [3, 4]
    assert trial.reports("validation") == {4: {"total": 21}}
    assert trial.service.body("/progress")["progress"] == 1
    (output,) = {c["metadata"]["default_output_uuid"] for c in trial.service.checkpoints.values()}
    files = {path.name: path.read_text() for path in (trial.folder / output / "rank_0").iterdir()}
    assert files == {f"batch_{index}": str(batch) for index, batch in batches}


def test_killed_and_resumed_at_the_last_checkpoint(
    trial: OneTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(batch_idx: int) -> None:
        if batch_idx == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        process(trial, monkeypatch, recorder([], die), checkpoint_interval=2)
    assert trial.checkpoints() == [2]
    seen: list[Any] = []
    process(trial, monkeypatch, recorder(seen), checkpoint_interval=2)
    assert seen == ["init", (2, [4, 5]), (3, [6]), "checkpoint", "finish"]
    # One place for what both processes stored.
    (output,) = {c["metadata"]["default_output_uuid"] for c in trial.service.checkpoints.values()}
    assert len(list((trial.folder / output / "rank_0").iterdir())) == 4
    seen.clear()
    process(trial, monkeypatch, recorder(seen), checkpoint_interval=2)
    assert seen == ["init", "finish"]


def test_preempted_at_a_checkpoint(trial: OneTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(batch_idx: int) -> None:
        trial.service.preempt.set()

    seen: list[Any] = []
    process(trial, monkeypatch, recorder(seen, stop), checkpoint_interval=2)
    assert seen == ["init", (0, [0, 1]), (1, [2, 3]), "checkpoint"]
    assert any(path.endswith("ack_preemption") for path in trial.service.paths("POST"))
    assert trial.reports("validation") == {2: {"total": 6}}
    process(trial, monkeypatch, recorder(seen), checkpoint_interval=2)
    assert trial.reports("validation")[4] == {"total": 15}


def test_batches_are_limited(trial: OneTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    process(trial, monkeypatch, recorder(seen), max_batches=2)
    assert seen == ["init", (0, [0, 1]), (1, [2, 3]), "checkpoint", "finish"]


@pytest.mark.parametrize(("before", "after", "first"), [(2, 1, 6), (1, 2, 1), (2, 2, 3)])
def test_another_number_of_processes_leaves_nothing_out(
    trial: OneTrial, before: int, after: int, first: int
) -> None:
    from determined.pytorch.experimental._batch_process import _position

    with trial.leg() as context:
        metadata = {"steps_completed": 3, "workers": before, "default_output_uuid": "x"}
        with context.checkpoint.store_path(metadata):
            pass
    with trial.leg() as context:
        context.distributed.size = after
        assert _position(context) == (first, "x")


def together(size: int, work: Any) -> list[Any]:
    def worker(rank: int) -> Any:
        places = {"local_rank": rank, "local_size": size, "cross_rank": 0, "cross_size": 1}
        with core.DistributedContext(rank=rank, size=size, **places) as dist:
            return work(dist)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(worker, range(size)))


def test_two_processes_share_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_SESSION_TOKEN", f"{os.getpid()}-{time.monotonic_ns()}")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    seen: tuple[list[Any], list[Any]] = ([], [])

    def work(dist: core.DistributedContext) -> None:
        torch_batch_process(
            recorder(seen[dist.rank]),
            Numbers(9),
            batch_size=2,
            checkpoint_interval=2,
            distributed_context=dist,
        )

    together(2, work)
    first, second = ([entry for entry in one if entry != "checkpoint"] for one in seen)
    assert first == ["init", (0, [0, 1]), (1, [4, 5]), (2, [8]), "finish"]
    assert second == ["init", (0, [2, 3]), (1, [6, 7]), "finish"]
    # A checkpoint is everybody's, also where somebody has no batch left.
    assert [one.count("checkpoint") for one in seen] == [2, 2]
    folders = (tmp_path / "determined/checkpoints").glob("*/rank_*")
    assert sorted((path.name, len(list(path.iterdir()))) for path in folders) == [
        ("rank_0", 3),
        ("rank_1", 2),
    ]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"checkpoint_interval": 0}, "checkpoint_interval must be a positive integer, found 0"),
        ({"max_batches": -1}, "max_batches must be a positive integer, found -1"),
        ({"batch_size": 2.5}, r"batch_size must be a positive integer, found 2\.5"),
        ({"dataloader_kwargs": {"shuffle": True}}, "leave shuffle out"),
        ({"dataloader_kwargs": {"sampler": [1]}}, "leave sampler out"),
        ({"batch_size": 2, "dataloader_kwargs": {"batch_size": 2}}, "batch_size is given twice"),
    ],
)
def test_arguments_that_make_no_sense(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        torch_batch_process(recorder([]), Numbers(4), **options)


def test_datasets_that_cannot_be_shared_out() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter([1])

    with pytest.raises(TypeError, match=r"Stream has no __len__\(\)"):
        torch_batch_process(recorder([]), Stream())

    class Known(Stream):
        def __len__(self) -> int:
            return 1

    with pytest.raises(TypeError, match=r"must have indices.*found an IterableDataset"):
        torch_batch_process(recorder([]), Known())


def test_the_facts_of_the_context(trial: OneTrial) -> None:
    with trial.leg() as core_context:
        assert get_default_device(core_context).type in ("cpu", "cuda")
        context = TorchBatchProcessorContext(core_context, "x")
        model = context.prepare_model_for_inference(torch.nn.Dropout())
        assert not model.training
        assert (context.get_distributed_rank(), context.get_distributed_size()) == (0, 1)
        context.report_metrics("inference", 3, {"seen": 2})
        assert context.get_tensorboard_path().is_dir()
        with pytest.raises(RuntimeError, match="does not belong to a trial"):
            context.get_hparams()
    assert trial.reports("inference") == {3: {"seen": 2}}
