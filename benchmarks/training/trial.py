"""The same training as a PyTorchTrial, for whichever `determined` is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.training import task
from determined import pytorch


class Digits(pytorch.PyTorchTrial):
    clock: Callable[[], None]
    marks: tuple[int, int]

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        torch.manual_seed(0)
        self.model = context.wrap_model(task.model(context.get_hparam("kind")))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=1e-3))

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(task.dataset(), batch_size=task.BATCH_SIZE, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        data = torch.utils.data.Subset(task.dataset(), range(task.BATCH_SIZE))
        return pytorch.DataLoader(data, batch_size=task.BATCH_SIZE)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        if batch_idx + 1 in self.marks:
            self.clock()
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        images, labels = batch
        return {"validation_loss": torch.nn.functional.cross_entropy(self.model(images), labels)}


def train(kind: str, batches: int, clock: Callable[[], None]) -> None:
    with pytorch.init(hparams={"kind": kind}, enable_tensorboard_logging=False) as context:
        trial = Digits(context)
        trial.clock, trial.marks = clock, (task.WARM_UP, batches)
        trainer = pytorch.Trainer(trial, context)
        trainer.fit(max_length=pytorch.Batch(batches), checkpoint_policy="none")
