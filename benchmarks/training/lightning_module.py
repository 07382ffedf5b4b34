"""The same training by Lightning's Trainer, with everything switched off that can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader

from benchmarks.training import task


class Digits(lightning.LightningModule):
    def __init__(self, kind: str, clock: Callable[[], None], marks: tuple[int, int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = task.model(kind)
        self.clock = clock
        self.marks = marks
        self.done = 0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.done += 1
        if self.done in self.marks:
            self.clock()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def train(kind: str, batches: int, clock: Callable[[], None]) -> None:
    trainer = lightning.Trainer(
        max_steps=batches,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=100,
    )
    loader = DataLoader(task.dataset(), batch_size=task.BATCH_SIZE, shuffle=True)
    trainer.fit(Digits(kind, clock, (task.WARM_UP, batches)), loader)
