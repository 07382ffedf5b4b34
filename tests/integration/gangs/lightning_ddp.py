"""Lightning's Trainer with its strategy "ddp" in processes that determined.launch has started."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from test_lightning import SINGLE, train

from tests.integration.gangs.gang_trial import GangTrial, tell

# 16 records in batches of 4, in two processes: two batches an epoch, three epochs.
STEPS = 2
DDP = {"devices": 2, "strategy": "ddp"}


def leg(trial: GangTrial, stop: int | None = None, **searcher: Any) -> dict[str, Any]:
    """One leg, preempted while batch ``stop`` (from 0) is trained: where it ended, and its weights."""
    with trial.leg({**SINGLE, **searcher}) as context:
        context.preempt.should_preempt()

        def watch(now: int) -> None:
            if now == stop:
                trial.preempt(context)

        trainer = train(context, watch=watch, **DDP)
        weights = torch.cat([one.detach().flatten() for one in trainer.model.parameters()])
        return {
            "steps": context.distributed.allgather(trainer.global_step),
            "weights": context.distributed.allgather(weights.tolist()),
        }


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, stops in {"unbroken": [], "at_end": [STEPS - 1], "within": [STEPS]}.items():
        trial = GangTrial(folder / name)
        legs = [leg(trial, stop) for stop in [*stops, None]]
        results[name] = {"legs": legs, **trial.summary()}
    trial = GangTrial(folder / "lengths")
    trial.service.lengths = [1, 3]
    legs = [leg(trial, max_length={"epochs": 9})]
    results["lengths"] = {"legs": legs, **trial.summary()}
    tell(folder, results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
