"""Optuna with Hyperband's pruner: `threads` of one process, or a fresh `process` per trial."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import optuna
import task

WORKERS = 2


def child(index: int) -> None:
    """One trial in its own process: accuracies out, "go" or "stop" in."""
    for epoch, accuracy in task.trial(index):
        print(json.dumps([epoch, accuracy]), flush=True)
        if sys.stdin.readline() != "go\n":
            break


def in_process(trial: optuna.Trial) -> float:
    accuracy = 0.0
    for epoch, accuracy in task.trial(trial.number):
        trial.report(accuracy, epoch)
        if epoch < task.EPOCHS and trial.should_prune():
            raise optuna.TrialPruned
    return accuracy


def in_child(trial: optuna.Trial) -> float:
    accuracy, pruned = 0.0, False
    command = [sys.executable, __file__, "child", str(trial.number)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        for line in process.stdout:
            epoch, accuracy = json.loads(line)
            trial.report(accuracy, epoch)
            pruned = epoch < task.EPOCHS and trial.should_prune()
            process.stdin.write("stop\n" if pruned else "go\n")
            process.stdin.flush()
            if pruned:
                break
    if pruned:
        raise optuna.TrialPruned
    return accuracy


def main(mode: str) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=optuna.pruners.HyperbandPruner(1, task.EPOCHS, task.DIVISOR),
    )
    if mode == "threads":
        for _ in task.epochs(task.points()[0], 1):  # imports, before there are threads
            pass
    assert threading.active_count() == 1
    study.optimize(
        in_process if mode == "threads" else in_child, n_trials=len(task.points()), n_jobs=WORKERS
    )


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child(int(sys.argv[2]))
    else:
        main(sys.argv[1])
