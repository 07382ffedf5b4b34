"""Ray Tune's ASHA, without starting Ray: the scheduler object alone decides."""

from __future__ import annotations

import numpy as np
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler
from ray.tune.schedulers.trial_scheduler import TrialScheduler

from benchmarks.search.offline.simulator import Decision, EndReason, Job
from benchmarks.search.offline.tasks import MAX_EPOCHS


class RayTrial:
    """As much of a trial as the schedulers look at."""

    def __init__(self, number: int) -> None:
        self.trial_id = f"t{number}"


class RaySearch:
    """Trials from the stream under a scheduler; ``brackets`` None: random search."""

    def __init__(self, brackets: int | None, seed: int) -> None:
        np.random.seed(seed)  # brackets are drawn from it
        self.scheduler = (
            FIFOScheduler()
            if brackets is None
            else AsyncHyperBandScheduler(
                metric="loss",
                mode="min",
                max_t=MAX_EPOCHS,
                grace_period=1,
                reduction_factor=3,
                brackets=brackets,
            )
        )
        self.count = 0
        self.running: dict[int, RayTrial] = {}

    def next_job(self) -> Job:
        number, self.count = self.count, self.count + 1
        trial = self.running[number] = RayTrial(number)
        self.scheduler.on_trial_add(None, trial)
        return Job(number)

    def report(self, trial: int, epoch: int, loss: float) -> Decision:
        result = {"training_iteration": epoch, "loss": loss}
        action = self.scheduler.on_trial_result(None, self.running[trial], result)
        if action == TrialScheduler.CONTINUE and epoch < MAX_EPOCHS:
            return Decision.CONTINUE
        self.scheduler.on_trial_complete(None, self.running.pop(trial), result)
        return Decision.STOP

    def exited(self, trial: int, reason: EndReason) -> None:
        self.scheduler.on_trial_error(None, self.running.pop(trial))
