"""The loop as it is written by hand, with the mean loss of every 100 batches."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader

from benchmarks.training import task


def train(kind: str, batches: int, clock: Callable[[], None]) -> None:
    torch.manual_seed(0)
    model = task.model(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(task.dataset(), batch_size=task.BATCH_SIZE, shuffle=True)
    done, total = 0, 0.0
    while done < batches:
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item()
            done += 1
            if done in (task.WARM_UP, batches):
                clock()
            if done % 100 == 0:
                logging.debug("batch %d: loss %.4f", done, total / 100)
                total = 0.0
            if done == batches:
                break
