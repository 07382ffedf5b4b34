"""Ray Tune's ASHA scheduler, called as its trial runner calls it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from load import DIVISOR, MAX_EPOCHS, measure
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

scheduler = AsyncHyperBandScheduler(
    metric="acc", mode="max", max_t=MAX_EPOCHS, grace_period=1, reduction_factor=DIVISOR
)


def run_trial(number: int, accuracies: Iterator[float]) -> int:
    trial: Any = SimpleNamespace(trial_id=str(number))
    scheduler.on_trial_add(None, trial)
    result: dict[str, float] = {}
    for epoch, accuracy in enumerate(accuracies, 1):
        result = {"training_iteration": epoch, "acc": accuracy}
        if scheduler.on_trial_result(None, trial, result) == TrialScheduler.STOP:
            break
    scheduler.on_trial_complete(None, trial, result)
    return int(result["training_iteration"])


if __name__ == "__main__":
    measure(run_trial)
