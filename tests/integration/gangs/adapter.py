"""LightningAdapter in two processes, beside the same training in one."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from test_lightning_adapter import Line, LineTrial, fit

from determined import core, pytorch
from tests.integration.gangs.gang_trial import RANK, tell


class Shuffled(LineTrial):
    shuffle = True


class Shared(Line):
    """Its scheduler is stepped by what is logged at the end: better and better in one process, worse
    and worse in the other, twice as much."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0)
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "error"}

    def on_validation_epoch_end(self) -> None:
        self.log("error", (2.0 if RANK else -1.0) * (self.trainer.current_epoch + 1))


def trained(length: Any, alone: bool = False, **options: Any) -> dict[str, Any]:
    """The weights after ``length``, of this process, and what the module's hooks were called with."""
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


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["XDG_DATA_HOME"] = str(folder / f"alone-{RANK}")
    results: dict[str, Any] = {}
    schedules = ("epoch", "step", "plateau")
    results["alone"] = {name: trained(3, alone=True, schedule=name) for name in schedules}
    os.environ["XDG_DATA_HOME"] = str(folder / "gang")
    torch.distributed.init_process_group("gloo")
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
    tell(folder, {"ranks": everybody})
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
