"""The LightningModule hooks that the adapter calls, and the attributes of ``self.trainer``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule

from determined import core, pytorch
from determined.pytorch._metrics import Averager
from determined.pytorch.lightning._optimizers import SteppedScheduler


class TrainerView:
    """``self.trainer`` of the module, with what our Trainer knows: position and ranks."""

    sanity_checking = False

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.current_epoch = 0
        self.global_step = 0
        self.world_size = context.distributed.size
        self.global_rank = context.distributed.rank
        self.local_rank = context.distributed.local_rank
        self.is_global_zero = self.global_rank == 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"self.trainer.{name} is not known under LightningAdapter, which has "
            f"{', '.join(sorted(vars(self)))}; train with Lightning's Trainer and determined.lightning"
        )


class Hooks(pytorch.PyTorchCallback):
    """Calls the module's hooks, and steps schedulers that wait for a validation's metric."""

    def __init__(
        self,
        module: LightningModule,
        schedules: list[SteppedScheduler],
        take_logged: Callable[[], dict[str, Any]],
        dist: core.DistributedContext,
    ) -> None:
        self._module = module
        self._dist = dist
        self._average = Averager()
        self._schedules = schedules
        self._take_logged = take_logged

    def on_training_start(self) -> None:
        self._module.on_fit_start()
        self._module.on_train_start()

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self._module.on_train_epoch_start()

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        self._module.on_train_epoch_end()

    def on_validation_start(self) -> None:
        self._take_logged()
        self._module.on_validation_start()
        self._module.on_validation_epoch_start()

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self._module.on_validation_epoch_end()
        # What is logged at the end is a metric of the whole validation, of which each process has seen its
        # share; and schedulers must take the same step in all of them.
        logged = self._take_logged()
        if self._dist.size > 1:
            own = {name: float(value) for name, value in logged.items()}
            logged = self._average(self._dist.allgather(own))
        metrics.update(logged)
        self._module.on_validation_end()
        for schedule in self._schedules:
            if schedule.is_plateau:
                if schedule.monitor not in metrics:
                    raise KeyError(
                        f"ReduceLROnPlateau monitors {schedule.monitor!r}, but the validation has no such "
                        f"metric; it has {', '.join(metrics) or 'none'}"
                    )
                schedule.scheduler.step(float(metrics[schedule.monitor]))

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        self._module.on_load_checkpoint(checkpoint)

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        self._module.on_save_checkpoint(checkpoint)

    def on_trial_shutdown(self) -> None:
        self._module.on_train_end()
        self._module.on_fit_end()
        self._module.teardown("fit")
