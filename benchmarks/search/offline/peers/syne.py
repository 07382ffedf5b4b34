"""Syne Tune's ASHA and BOHB, driven by suggest and on_trial_result."""

from __future__ import annotations

import datetime
import logging
import random
from typing import Any

import numpy as np
from syne_tune.backend.trial_status import Trial
from syne_tune.config_space import choice, loguniform, uniform
from syne_tune.optimizer.baselines import ASHA, BOHB
from syne_tune.optimizer.scheduler import SchedulerDecision

from benchmarks.search.offline.simulator import Decision, EndReason, Job
from benchmarks.search.offline.space import Param
from benchmarks.search.offline.tasks import MAX_EPOCHS, Outcomes

logging.getLogger("syne_tune").setLevel(logging.ERROR)


def domain(param: Param) -> Any:
    if param.kind == "choice":
        return choice(list(param.choices))
    make = loguniform if param.kind == "log" else uniform
    return make(param.low, param.high)


class SyneSearch:
    """``trials``: with the random ASHA, how many configurations of the stream it is handed in
    advance as its points to evaluate; None: BOHB, which samples by its own model."""

    def __init__(self, outcomes: Outcomes, seed: int, trials: int | None) -> None:
        np.random.seed(seed)  # brackets and random configurations come from these two
        random.seed(seed)
        self.own_sampler = trials is None
        points = None if trials is None else [outcomes.drawn(i)[0] for i in range(trials)]
        self.scheduler = (BOHB if self.own_sampler else ASHA)(
            {param.name: domain(param) for param in outcomes.task.space},
            metric="loss",
            time_attr="epoch",
            max_t=MAX_EPOCHS,
            do_minimize=True,
            grace_period=1,
            reduction_factor=3,
            random_seed=seed,
            points_to_evaluate=points,
        )
        self.count = 0
        self.running: dict[int, Trial] = {}

    def next_job(self) -> Job:
        number, self.count = self.count, self.count + 1
        config = self.scheduler.suggest().config
        trial = self.running[number] = Trial(number, config, datetime.datetime.now())
        self.scheduler.on_trial_add(trial)
        return Job(number, config if self.own_sampler else None)

    def report(self, trial: int, epoch: int, loss: float) -> Decision:
        result = {"epoch": epoch, "loss": loss}
        action = self.scheduler.on_trial_result(self.running[trial], result)
        if action == SchedulerDecision.CONTINUE:
            return Decision.CONTINUE
        self.scheduler.on_trial_remove(self.running.pop(trial))
        return Decision.STOP

    def exited(self, trial: int, reason: EndReason) -> None:
        self.scheduler.on_trial_error(self.running.pop(trial))
