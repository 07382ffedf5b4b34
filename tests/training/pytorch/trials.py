"""Trial classes for the tests, small enough to train in milliseconds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from determined import core, pytorch
from determined.pytorch import _rng

RECORDS, SIZE = 20, 4
PER_EPOCH = RECORDS // SIZE

Dataset = TensorDataset


def data(records: int = RECORDS) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(records, 4, generator=generator)
    return TensorDataset(inputs, torch.arange(records, dtype=torch.float32))


class SmallTrial(pytorch.PyTorchTrial):
    """Keeps per batch the loss and the records that were in it; draws from every generator."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(
            torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        )
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.01))
        self.seen: list[tuple[float, list[float]]] = []
        self.callbacks: dict[str, pytorch.PyTorchCallback] = {}
        self.stop_after: int | None = None

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return self.callbacks

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(data(), batch_size=SIZE, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(data(7), batch_size=SIZE)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        inputs, targets = batch
        noise = random.random() + float(np.random.random())
        loss = ((self.model(inputs)[:, 0] - targets * 0.1) ** 2).mean() * (1 + noise)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.seen.append((loss.item(), targets.tolist()))
        if batch_idx + 1 == self.stop_after:
            self.context.set_stop_requested(True)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        return {"error": (self.model(inputs)[:, 0] - targets).abs().mean(), "first": targets[0]}


class Recorder(core.DummyTrainContext):
    """Keeps the reports."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[tuple[str, int, dict[str, Any]]] = []
        self.progress: list[float] = []

    def _report(
        self, group: str, steps_completed: int, metrics: Any, batch_metrics: Any = None
    ) -> None:
        self.reports.append((group, steps_completed, dict(metrics)))

    def report_progress(self, progress: float) -> None:
        self.progress.append(progress)

    def steps(self, group: str) -> list[int]:
        return [steps for kind, steps, _ in self.reports if kind == group]


class Stored(core.DummyCheckpointContext):
    """Remembers the uuids, by steps."""

    def __init__(self, dist: core.DistributedContext, storage: Any) -> None:
        super().__init__(dist, storage)
        self.uuids: dict[int, str] = {}

    def _report_checkpoint(self, storage_id: str, manifest: Any, metadata: dict[str, Any]) -> None:
        self.uuids[metadata["steps_completed"]] = storage_id


class World:
    """Trains off-cluster in a folder; contexts keep their reports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def context(self, seed: int = 3, **options: Any) -> Iterator[Any]:
        dist = core.DummyDistributedContext()
        from determined import storage

        manager = storage.build({"type": "directory", "container_path": str(self.folder)})
        core_context = core._context._dummy_context(dist, manager, core.PreemptMode.WorkersAskChief)
        core_context.train = Recorder()
        core_context.checkpoint = Stored(dist, manager)
        _rng.seed_all(seed)
        hparams = options.pop("hparams", {"global_batch_size": SIZE})
        with core_context:
            yield pytorch.PyTorchTrialContext(
                core_context, seed, hparams, 1, 0, options.pop("exp_conf", None), **options
            )

    def train(
        self,
        trial_class: Callable[[Any], Any] = SmallTrial,
        prepare: Callable[[Any], None] = lambda trial: None,
        context_options: dict[str, Any] | None = None,
        **fit: Any,
    ) -> Any:
        """The trial after ``fit(**fit)``; the default length is two epochs."""
        fit.setdefault("max_length", pytorch.Epoch(2))
        with self.context(**(context_options or {})) as context:
            trial = trial_class(context)
            prepare(trial)
            pytorch.Trainer(trial, context).fit(**fit)
        trial.reports = context._core.train
        trial.stored = context._core.checkpoint.uuids
        return trial
