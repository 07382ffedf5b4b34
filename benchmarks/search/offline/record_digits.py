"""Records `digits.npz`: what 256 networks on scikit-learn's digits cost and lose, epoch by epoch.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.search.offline.record_digits

Run once; the benchmark reads the table. About one CPU minute: a network of one hidden layer trained
by plain NumPy, as calling a framework for batches this small is mostly the calling. Epoch seconds
are CPU seconds of the machine at hand, so a new recording has other costs and the same losses.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.search.offline.space import DIGITS_SPACE

CONFIGS = 256
EPOCHS = 81
WORST = 2 * math.log(10)  # twice the loss of guessing: where diverged networks are cut off
TABLE = Path(__file__).with_name("digits.npz")

Weights = list[np.ndarray]


class Digits:
    """1437 images to train with and 360 to validate with; pixels in 0..1."""

    def __init__(self) -> None:
        bunch = load_digits()
        order = np.random.default_rng(0).permutation(len(bunch.target))
        images = (bunch.data[order] / 16).astype(np.float32)
        labels = np.eye(10, dtype=np.float32)[bunch.target[order]]
        cut = len(order) * 4 // 5
        self.train = images[:cut], labels[:cut]
        self.valid = images[cut:], labels[cut:]


def forward(weights: Weights, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hidden activations, and the probability of each digit."""
    first, first_bias, second, second_bias = weights
    hidden = np.maximum(images @ first + first_bias, 0)
    scores = hidden @ second + second_bias
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def gradients(weights: Weights, images: np.ndarray, labels: np.ndarray) -> Weights:
    """Of the mean cross-entropy."""
    hidden, chances = forward(weights, images)
    error = (chances - labels) / len(images)
    below = (error @ weights[2].T) * (hidden > 0)
    return [images.T @ below, below.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def validation_loss(weights: Weights, digits: Digits) -> float:
    images, labels = digits.valid
    right = (forward(weights, images)[1] * labels).sum(axis=1)
    loss = -float(np.log(np.maximum(right, 1e-30)).mean())
    return min(loss, WORST) if math.isfinite(loss) else WORST


def train(digits: Digits, config: dict[str, float], seed: int) -> tuple[list[float], float]:
    """Validation cross-entropy after each epoch, and the CPU seconds of one epoch."""
    chance = np.random.default_rng(seed)
    hidden, batch = round(config["hidden"]), int(config["batch"])
    weights = [
        chance.normal(0, size**-0.5, (size, out)).astype(np.float32) if many else np.zeros(out, "f")
        for size, out, many in ((64, hidden, 1), (64, hidden, 0), (hidden, 10, 1), (hidden, 10, 0))
    ]
    speeds = [np.zeros_like(weight) for weight in weights]
    images, labels = digits.train
    losses = []
    start = time.process_time()
    for _ in range(EPOCHS):
        order = chance.permutation(len(images))
        for begin in range(0, len(order), batch):
            rows = order[begin : begin + batch]
            steps = gradients(weights, images[rows], labels[rows])
            for weight, speed, step in zip(weights, speeds, steps, strict=True):
                speed *= config["momentum"]
                speed += step
                weight -= config["learning_rate"] * speed
        losses.append(validation_loss(weights, digits))
    return losses, (time.process_time() - start) / EPOCHS


def main() -> None:
    digits = Digits()
    points = np.random.default_rng(0).random((CONFIGS, len(DIGITS_SPACE)))
    recorded = []
    with np.errstate(all="ignore"):  # some diverge
        for number, point in enumerate(points):
            config = {param.name: param.at(u) for param, u in zip(DIGITS_SPACE, point, strict=True)}
            recorded.append(train(digits, config, number))
            if number % 32 == 31:
                print(f"{number + 1} of {CONFIGS} recorded", flush=True)
    losses, seconds = zip(*recorded, strict=True)
    np.savez_compressed(
        TABLE,
        points=points.astype(np.float32),
        losses=np.array(losses, np.float32),
        seconds=np.array(seconds, np.float32),
    )


if __name__ == "__main__":
    main()
