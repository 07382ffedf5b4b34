"""The common base of the contexts of PyTorch's trial classes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from determined import core, util
from determined._trial_context import TrialContext
from determined.common import installation
from determined.pytorch import _device
from determined.pytorch._lr_scheduler import LRScheduler
from determined.pytorch._reducer import MetricReducer, Reducers


class TrainingContext(TrialContext):
    """The position of the training, batch sizes, metrics, charts and profiles.

    ``models`` lists what the trial has wrapped; ``device`` is where this process trains.
    """

    # The trial class that it is for, as messages name it.
    _kind = "PyTorchTrial"

    def __init__(
        self,
        core_context: core.Context,
        trial_seed: int | None,
        hparams: dict[str, Any] | None,
        slots_per_trial: int,
        num_gpus: int,
        exp_conf: dict[str, Any] | None,
        steps_completed: int,
        managed_training: bool,
        enable_tensorboard_logging: bool,
    ) -> None:
        super().__init__(core_context, trial_seed, hparams, exp_conf, steps_completed)
        self.device = _device.of_process(core_context.distributed.local_rank, num_gpus)
        self.models: list[Any] = []
        # Those that the training loop steps.
        self.lr_schedulers: list[LRScheduler] = []
        self._slots_per_trial = slots_per_trial
        self._managed = managed_training
        self._tensorboard_logging = enable_tensorboard_logging
        core_context.train._log_for_tensorboard(enable_tensorboard_logging)
        self._reducers = Reducers(self.distributed.allgather)
        self._profiler: Any = None
        self._writer: Any = None
        self._warned_types: set[type] = set()
        # Switches; experimental ones of a PyTorchTrial among them.
        self._auto_amp = False
        self._auto_to_device = True
        self._repro_checks_disabled = False
        # Set by the training loop.
        self._batch: int | None = None
        self._epoch_length: int | None = None

    def to_device(self, data: Any) -> Any:
        """``data`` on the device; see :func:`determined.pytorch.to_device`."""
        return _device.to_device(data, self.device, self._warned_types)

    # Where the training stands.

    def current_train_batch(self) -> int:
        """The number of the batch in training, counted from 0. Raises RuntimeError before the first."""
        if self._batch is None:
            raise RuntimeError("the training has not started, so it has no current batch")
        return self._batch

    def current_train_epoch(self) -> int:
        """The number of the epoch in training, counted from 0. Raises RuntimeError before the first."""
        return self.current_train_batch() // self._batches_per_epoch()

    def is_epoch_start(self) -> bool:
        """True if the batch in training is the first of its epoch."""
        return self.current_train_batch() % self._batches_per_epoch() == 0

    def is_epoch_end(self) -> bool:
        """True if the batch in training is the last of its epoch."""
        return (self.current_train_batch() + 1) % self._batches_per_epoch() == 0

    def _batches_per_epoch(self) -> int:
        if self._epoch_length is None:
            raise RuntimeError("the training data has no length, so it has no epochs")
        return self._epoch_length

    def get_global_batch_size(self) -> int:
        """Records in a batch, all processes together: the hyperparameter ``global_batch_size``.

        Raises errors.InvalidExperimentException when it is missing or not an integer.
        """
        return util.calculate_batch_sizes(self._hparams, self._slots_per_trial, self._kind)[1]

    def get_per_slot_batch_size(self) -> int:
        """Records in this process' part of a batch; raises as :meth:`get_global_batch_size`."""
        return util.calculate_batch_sizes(self._hparams, self._slots_per_trial, self._kind)[0]

    # Metrics, charts, profiles.

    def wrap_reducer(
        self,
        reducer: Callable[[list[Any]], Any] | MetricReducer,
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """A metric of many batches, reduced and reported with the others under ``name``.

        A function of the list of all values becomes a :class:`SimpleMetricReducer`: give values to the
        returned object's ``update()``.
        """
        return self._reducers.wrap(reducer, name, for_training, for_validation)

    def reset_reducers(self) -> None:
        """Reset all reducers; the Trainer does this before each validation."""
        self._reducers.reset()

    def set_profiler(self, *args: Any, **kwargs: Any) -> None:
        """Profile the training by ``torch.profiler.profile(*args, **kwargs)``.

        Traces go to the TensorBoard directory, unless ``on_trace_ready`` says otherwise.
        """
        if "on_trace_ready" not in kwargs:
            handler = torch.profiler.tensorboard_trace_handler(str(self.get_tensorboard_path()))
            kwargs["on_trace_ready"] = handler
        self._profiler = torch.profiler.profile(*args, **kwargs)

    def get_enable_tensorboard_logging(self) -> bool:
        """True if reported metrics are written to TensorBoard files (on the cluster)."""
        return self._tensorboard_logging

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Set whether reported metrics are written to TensorBoard files."""
        if not isinstance(enable_tensorboard_logging, bool):
            raise TypeError(
                f"enable_tensorboard_logging must be a bool, found {enable_tensorboard_logging!r}"
            )
        self._tensorboard_logging = enable_tensorboard_logging
        self._core.train._log_for_tensorboard(enable_tensorboard_logging)

    def get_tensorboard_writer(self) -> Any:
        """A ``torch.utils.tensorboard.SummaryWriter`` for the trial's own charts.

        Its files go to :meth:`get_tensorboard_path`. Raises ImportError when the package tensorboard
        is not installed.
        """
        if self._writer is None:
            if importlib.util.find_spec("tensorboard") is None:
                raise ImportError(
                    f"TensorBoard files need its package: {installation.command('tensorboard')}"
                )
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(log_dir=str(self.get_tensorboard_path()))
        return self._writer

    def _flush_writer(self) -> None:
        """Flush the trial's own event file, so that it can be uploaded."""
        if self._writer is not None:
            self._writer.flush()
