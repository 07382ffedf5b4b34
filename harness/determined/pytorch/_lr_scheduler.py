"""Learning rate schedulers and who steps them."""

from __future__ import annotations

import enum
from typing import Any


class LRScheduler:
    """A torch scheduler with the moment at which the Trainer steps it.

    ``scheduler`` is anything with ``step()``, ``state_dict()`` and ``load_state_dict()``. With
    ``frequency`` n, the modes of batches and epochs step at every n-th of them, that of the optimizers'
    steps where these fall on every n-th batch.
    """

    class StepMode(enum.Enum):
        """STEP_EVERY_EPOCH: at the end of an epoch, before ``on_training_epoch_end``.
        STEP_EVERY_BATCH: after a batch; with ``aggregation_frequency``, for all batches of an optimizer
        step after it. STEP_EVERY_OPTIMIZER_STEP: after a batch with which the
        optimizers step (every ``aggregation_frequency``-th). MANUAL_STEP: the training code steps it.
        """

        STEP_EVERY_EPOCH = 1
        STEP_EVERY_BATCH = 2
        MANUAL_STEP = 3
        STEP_EVERY_OPTIMIZER_STEP = 4

    def __init__(self, scheduler: Any, step_mode: LRScheduler.StepMode, frequency: int = 1) -> None:
        if scheduler is None:
            raise ValueError("scheduler is None; does the function that builds it return one?")
        if not isinstance(step_mode, LRScheduler.StepMode):
            raise TypeError(
                "step_mode must be a pytorch.LRScheduler.StepMode "
                f"({', '.join(LRScheduler.StepMode.__members__)}), found {step_mode!r}"
            )
        if not isinstance(frequency, int) or frequency < 1:
            raise ValueError(f"frequency must be a positive integer, found {frequency!r}")
        self._scheduler = scheduler
        self._step_mode = step_mode
        self._frequency = frequency

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the scheduler now."""
        self._scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[Any]:
        """The scheduler's last learning rates, one per group of parameters."""
        rates: list[Any] = self._scheduler.get_last_lr()
        return rates

    def state_dict(self) -> dict[Any, Any]:
        state: dict[Any, Any] = self._scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[Any, Any]) -> None:
        self._scheduler.load_state_dict(state_dict)
