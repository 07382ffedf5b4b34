"""Optuna in memory: random sampler, successive halving pruner, ask and tell."""

from __future__ import annotations

from collections.abc import Iterator

import optuna
from load import DIVISOR, MAX_EPOCHS, measure
from optuna.trial import TrialState

optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(
    direction="maximize",
    sampler=optuna.samplers.RandomSampler(seed=0),
    pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=DIVISOR),
)


def run_trial(_: int, accuracies: Iterator[float]) -> int:
    trial = study.ask()
    trial.suggest_float("lr", 1e-4, 0.3, log=True)
    trial.suggest_categorical("hidden", [16, 32, 64, 128])
    for epoch, accuracy in enumerate(accuracies, 1):
        trial.report(accuracy, epoch)
        if epoch == MAX_EPOCHS:
            study.tell(trial, accuracy)
        elif trial.should_prune():
            study.tell(trial, state=TrialState.PRUNED)
        else:
            continue
        return epoch
    raise AssertionError("a trial ends at the top rung at the latest")


if __name__ == "__main__":
    measure(run_trial)
