"""One validation of a DeepSpeedTrial."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from determined import core, errors
from determined.pytorch._validation import Validation
from determined.pytorch.deepspeed._context import DeepSpeedTrialContext
from determined.pytorch.deepspeed._trial import DeepSpeedTrial

logger = logging.getLogger("determined.pytorch")


def of_all(dist: core.DistributedContext, length: int | None) -> list[int]:
    """The lengths of the loaders, from all processes that have a loader; all processes call it together."""
    return [found for found in dist.allgather(length) if found is not None]


class EngineValidation(Validation):
    """Evaluates the same number of batches in every process: that of the process with the fewest."""

    _context: DeepSpeedTrialContext  # type: ignore[assignment]
    trial_class = DeepSpeedTrial
    arguments = ("dataloader_iter", "batch_idx")

    def _build_loader(self) -> Any:
        context = self._context
        mpu = context._mpu
        loader = None
        if mpu.should_build_data_loader:
            loader = self._shared_out(mpu.data_parallel_world_size, mpu.data_parallel_rank)
        if self._by_batch:
            self._count = self._batches_in(loader)
        return loader

    def _batches_in(self, loader: Any) -> int:
        """The number of calls of evaluate_batch in each process."""
        context = self._context
        length = None if loader is None else self._length(loader)
        # A pipeline engine takes as many micro-batches at once as in training.
        at_once = context.get_num_micro_batches_per_slot() if context.use_pipeline_parallel else 1
        count = min(of_all(context.distributed, length), default=0) // at_once
        left = 0 if length is None else length - count * at_once
        if left:
            logger.warning(
                "validations leave out the last %d of this process' %d micro-batches: %s",
                left,
                length,
                f"the engine takes {at_once} at once, in all processes together"
                if at_once > 1
                else "other processes have fewer",
            )
        return count

    def _length(self, loader: Any) -> int:
        try:
            return len(loader)
        except TypeError:
            raise errors.InvalidModelException(
                "build_validation_data_loader() must return a loader with a length, found "
                "{type(loader).__name__}: all processes must evaluate the same number of batches"
            ) from None

    def _evaluated(self) -> Iterator[tuple[Any, int]]:
        read = None
        if self._loader is not None:
            read = Counted(iter(self._loader), self._trial.get_batch_length)
        for idx in range(self._count):
            output = self._evaluate(read, idx)
            if self._context._mpu.should_report_metrics:
                # A process without data takes the others' metrics.
                yield _in_one_shape(output), 0 if read is None else read.taken()


def _in_one_shape(output: Any) -> Any:
    """Single numbers without a dimension: some stages of a pipeline have the loss as a list of one."""
    if not isinstance(output, dict):
        return output
    return {
        name: value.reshape(()) if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        for name, value in output.items()
    }


class Counted:
    """An iterator that knows how many records it has given."""

    def __init__(self, batches: Iterator[Any], records: Callable[[Any], int]) -> None:
        self._batches = batches
        self._records = records
        self._taken = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._taken += self._records(batch)
        return batch

    def taken(self) -> int:
        """Records since the last call; 1 for none, so that there is a weight."""
        taken, self._taken = self._taken, 0
        return taken or 1
