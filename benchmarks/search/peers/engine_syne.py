"""Syne Tune's ASHA with its random searcher, called as its tuner calls it."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator

from load import DIVISOR, MAX_EPOCHS, measure
from syne_tune.backend.trial_status import Trial
from syne_tune.config_space import choice, loguniform
from syne_tune.optimizer.baselines import ASHA
from syne_tune.optimizer.scheduler import SchedulerDecision

logging.getLogger().setLevel(logging.ERROR)
scheduler = ASHA(
    {"lr": loguniform(1e-4, 0.3), "hidden": choice([16, 32, 64, 128])},
    metric="acc",
    time_attr="epoch",
    max_t=MAX_EPOCHS,
    do_minimize=False,
    grace_period=1,
    reduction_factor=DIVISOR,
    random_seed=0,
)


def run_trial(number: int, accuracies: Iterator[float]) -> int:
    trial = Trial(number, scheduler.suggest().config, datetime.datetime.now())
    scheduler.on_trial_add(trial)
    result: dict[str, float] = {}
    for epoch, accuracy in enumerate(accuracies, 1):
        result = {"epoch": epoch, "acc": accuracy}
        if scheduler.on_trial_result(trial, result) == SchedulerDecision.STOP:
            break
    scheduler.on_trial_complete(trial, result)
    return int(result["epoch"])


if __name__ == "__main__":
    measure(run_trial)
