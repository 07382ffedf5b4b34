"""Hugging Face's Trainer in two processes: stopped anywhere, its losses equal those of an unbroken run."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from test_transformers import train

from tests.integration.gangs.gang_trial import GangTrial, tell

# 16 records in batches of 2, in two processes: four steps an epoch, two epochs.
OPTIONS: dict[str, Any] = {"per_device_train_batch_size": 2}


def leg(trial: GangTrial, folder: Path, stop: int | None) -> dict[str, Any]:
    """One leg, preempted in step ``stop`` (from 1), in a new directory: where it ended, its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    with trial.leg() as context:
        context.preempt.should_preempt()

        def watch(step: int) -> None:
            if step + 1 == stop:
                trial.preempt(context)

        trainer = train(context, watch, **OPTIONS)
        weights = torch.cat([one.detach().flatten() for one in trainer.model.parameters()])
        return {
            "steps": context.distributed.allgather(trainer.state.global_step),
            "weights": context.distributed.allgather(weights.tolist()),
        }


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, stops in {"unbroken": [], "at_end": [4], "within": [2, 6]}.items():
        trial = GangTrial(folder / "storage" / name)
        legs = [
            leg(trial, folder / "work" / name / str(number), stop)
            for number, stop in enumerate([*stops, None])
        ]
        results[name] = {"legs": legs, **trial.summary()}
    tell(folder, results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
