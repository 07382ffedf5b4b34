"""Optuna's samplers and pruners, driven by ask, report, should_prune and tell."""

from __future__ import annotations

import optuna
from optuna.trial import Trial, TrialState

from benchmarks.search.offline.simulator import Decision, EndReason, Job
from benchmarks.search.offline.space import Param
from benchmarks.search.offline.tasks import MAX_EPOCHS

optuna.logging.set_verbosity(optuna.logging.ERROR)
RUNGS = {1, 3, 9, 27}  # the pruners look at these epochs only: elsewhere the answer is known


def suggest(trial: Trial, param: Param) -> float:
    if param.kind == "choice":
        return float(trial.suggest_categorical(param.name, list(param.choices)))
    return trial.suggest_float(param.name, param.low, param.high, log=param.kind == "log")


class OptunaSearch:
    """``tpe``: the TPE sampler with its defaults, else trials from the stream.
    ``hyperband``: all brackets, else one of successive halving."""

    def __init__(self, space: tuple[Param, ...], seed: int, tpe: bool, hyperband: bool) -> None:
        self.space = space if tpe else ()
        self.study = optuna.create_study(
            study_name=f"offline-{seed}",  # Hyperband hashes it into brackets
            sampler=(optuna.samplers.TPESampler if tpe else optuna.samplers.RandomSampler)(
                seed=seed
            ),
            pruner=optuna.pruners.HyperbandPruner(1, MAX_EPOCHS, 3)
            if hyperband
            else optuna.pruners.SuccessiveHalvingPruner(1, 3, 0),
        )
        self.running: dict[int, Trial] = {}

    def next_job(self) -> Job:
        trial = self.study.ask()
        self.running[trial.number] = trial
        config = {param.name: suggest(trial, param) for param in self.space}
        return Job(trial.number, config or None)

    def report(self, trial: int, epoch: int, loss: float) -> Decision:
        running = self.running[trial]
        running.report(loss, epoch)
        if epoch == MAX_EPOCHS:
            self.study.tell(self.running.pop(trial), loss)
            return Decision.STOP
        if epoch in RUNGS and running.should_prune():
            self.study.tell(self.running.pop(trial), state=TrialState.PRUNED)
            return Decision.STOP
        return Decision.CONTINUE

    def exited(self, trial: int, reason: EndReason) -> None:
        self.study.tell(self.running.pop(trial), state=TrialState.FAIL)
