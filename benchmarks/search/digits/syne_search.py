"""Syne Tune's ASHA on its local backend: a fresh process per trial."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

import task

WORKERS = 2


def child() -> None:
    from syne_tune import Reporter

    parser = ArgumentParser()
    parser.add_argument("--index", type=float)
    given, _ = parser.parse_known_args()
    report = Reporter()
    for epoch, accuracy in task.trial(int(given.index)):
        report(epoch=epoch, accuracy=accuracy)


def main() -> None:
    folder = tempfile.mkdtemp()
    os.environ["SYNETUNE_FOLDER"] = folder
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend import LocalBackend
    from syne_tune.config_space import uniform
    from syne_tune.optimizer.baselines import ASHA

    logging.getLogger().setLevel(logging.ERROR)
    count = len(task.points())
    Tuner(
        trial_backend=LocalBackend(entry_point=str(Path(__file__).resolve())),
        scheduler=ASHA(
            {"index": uniform(0, count)},
            metric="accuracy",
            time_attr="epoch",
            max_t=task.EPOCHS,
            do_minimize=False,
            grace_period=1,
            reduction_factor=task.DIVISOR,
            points_to_evaluate=[{"index": float(index)} for index in range(count)],
            random_seed=0,
        ),
        stop_criterion=StoppingCriterion(max_num_trials_started=count),
        n_workers=WORKERS,
        sleep_time=0.1,
        print_update_interval=10**9,
        wait_trial_completion_when_stopping=True,
    ).run()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if any(argument.startswith("--index") for argument in sys.argv):
        child()
    else:
        main()
