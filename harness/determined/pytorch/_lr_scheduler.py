"""Learning rate schedulers, and when they are stepped."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any


class LRScheduler:
    """A torch scheduler with the moment at which the Trainer steps it.

    ``scheduler`` is anything with ``step()``, ``state_dict()`` and ``load_state_dict()``. With
    ``frequency`` n, the modes for batches and epochs step at every n-th batch or epoch. The mode for
    optimizer steps steps when such a step falls on an n-th batch.
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
            raise ValueError("scheduler is None: check that the function that builds it returns it")
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


def after_batches(scheduler: LRScheduler, aggregation: int) -> Callable[[int], None] | None:
    """The function to call with the index of each trained batch, if any.

    ``aggregation``: the number of batches between two steps of the optimizers.
    """
    mode, frequency = scheduler._step_mode, scheduler._frequency

    def with_optimizers(idx: int) -> None:
        if (idx + 1) % aggregation == 0 and (idx + 1) % frequency == 0:
            scheduler.step()

    def for_each_batch(idx: int) -> None:
        # Schedulers must step after optimizers: the steps of batches without an optimizer step are made up
        # for after the next one.
        done = idx + 1
        if done % aggregation == 0:
            for _ in range(done // frequency - (done - aggregation) // frequency):
                scheduler.step()

    if mode is LRScheduler.StepMode.STEP_EVERY_BATCH:
        return for_each_batch
    return with_optimizers if mode is LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP else None


def end_epoch(schedulers: list[LRScheduler], epoch: int) -> None:
    """Step the schedulers that are due after epoch ``epoch`` (counted from 0)."""
    for scheduler in schedulers:
        by_epoch = scheduler._step_mode is LRScheduler.StepMode.STEP_EVERY_EPOCH
        if by_epoch and (epoch + 1) % scheduler._frequency == 0:
            scheduler.step()
