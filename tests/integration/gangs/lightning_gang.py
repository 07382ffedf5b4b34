"""Lightning's Trainer with its strategy "ddp"; LightningAdapter, beside the same training in one process."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import test_lightning
import torch
import torch.distributed
from test_lightning_adapter import Line, LineTrial, fit

from determined import core, pytorch
from tests.integration.gangs.gang_trial import RANK, GangTrial, tell

# 16 records in batches of 4, in two processes: two batches an epoch, three epochs.
STEPS = 2
DDP = {"devices": 2, "strategy": "ddp"}


def leg(trial: GangTrial, stop: int | None = None, **searcher: Any) -> dict[str, Any]:
    """One leg, preempted while batch ``stop`` (from 0) is trained: where it ended, and its weights."""
    with trial.leg({**test_lightning.SINGLE, **searcher}) as context:
        context.preempt.should_preempt()

        def watch(now: int) -> None:
            if now == stop:
                trial.preempt(context)

        trainer = test_lightning.train(context, watch=watch, **DDP)
        weights = torch.cat([one.detach().flatten() for one in trainer.model.parameters()])
        return {
            "steps": context.distributed.allgather(trainer.global_step),
            "weights": context.distributed.allgather(weights.tolist()),
        }


def callback(folder: Path) -> dict[str, Any]:
    """The result of Lightning's Trainer."""
    results: dict[str, Any] = {}
    for name, stops in {"unbroken": [], "at_end": [STEPS - 1], "within": [STEPS]}.items():
        trial = GangTrial(folder / name)
        legs = [leg(trial, stop) for stop in [*stops, None]]
        results[name] = {"legs": legs, **trial.summary()}
    trial = GangTrial(folder / "lengths")
    trial.service.lengths = [1, 3]
    legs = [leg(trial, max_length={"epochs": 9})]
    results["lengths"] = {"legs": legs, **trial.summary()}
    return results


class Shuffled(LineTrial):
    shuffle = True


class Shared(Line):
    """The metric logged at the end steps its scheduler: it improves in one process and worsens twice as fast
    in the other."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0)
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "error"}

    def on_validation_epoch_end(self) -> None:
        self.log("error", (2.0 if RANK else -1.0) * (self.trainer.current_epoch + 1))


def trained(length: Any, alone: bool = False, **options: Any) -> dict[str, Any]:
    """The weights after ``length``, of this process, and the arguments of the module's hooks."""
    dist = core.DummyDistributedContext() if alone else None
    module = fit(
        length, options.pop("schedule", "step"), dist, trial_class=Shuffled, **options
    ).lightning_module
    weights = torch.cat([one.detach().flatten() for one in module.parameters()])
    return {"weights": weights.tolist(), "calls": module.calls}


def latest() -> str:
    """The newest checkpoint of this process' directory."""
    folder = Path(os.environ["XDG_DATA_HOME"]) / "determined/checkpoints"
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns).name


def adapter(folder: Path) -> list[dict[str, Any]]:
    """The result of our Trainer, of each process."""
    os.environ["XDG_DATA_HOME"] = str(folder / f"alone-{RANK}")
    results: dict[str, Any] = {}
    schedules = ("epoch", "step", "plateau")
    results["alone"] = {name: trained(3, alone=True, schedule=name) for name in schedules}
    os.environ["XDG_DATA_HOME"] = str(folder / "gang")
    results["gang"] = {name: trained(3, schedule=name) for name in schedules}
    Shuffled.module = Shared()
    shared = fit(3, "plateau", trial_class=Shuffled)
    results["learning rate"] = shared._optimizer.param_groups[0]["lr"]
    Shuffled.module = None
    # Stopped at an epoch's end, and within one.
    for steps in (8, 6):
        trained(pytorch.Batch(steps))
        torch.distributed.barrier()
        results[f"resumed after {steps}"] = trained(3, latest_checkpoint=latest())
        torch.distributed.barrier()
    everybody: list[Any] = [None, None]
    torch.distributed.all_gather_object(everybody, results)
    return everybody


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Lightning makes the process group, and the adapter uses it.
    tell(folder, {**callback(folder), "adapter": adapter(folder)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
