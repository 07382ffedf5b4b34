"""Scores a checkpoint on the present month's held-out images: champion and challenger see the same ones."""

import pathlib

import data
import torch
import train


@torch.no_grad()
def evaluate(checkpoint: pathlib.Path, hparams: dict) -> dict:
    """One score for each image: `accuracy` 1 or 0, `loss` the cross entropy."""
    model = train.build_model(hparams)
    model.load_state_dict(torch.load(checkpoint / "model.pt"))
    model.eval()
    _, (images, labels) = data.load(data.month())
    scores = model(images)
    return {
        "accuracy": (scores.argmax(dim=1) == labels).float(),
        "loss": torch.nn.functional.cross_entropy(scores, labels, reduction="none"),
    }
