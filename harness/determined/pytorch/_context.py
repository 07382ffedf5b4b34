"""What a PyTorchTrial trains with."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from determined import core, util
from determined._trial_context import TrialContext
from determined.pytorch import _device, _parallel
from determined.pytorch._experimental import PyTorchExperimentalContext
from determined.pytorch._lr_scheduler import LRScheduler
from determined.pytorch._reducer import MetricReducer, Reducers

logger = logging.getLogger("determined.pytorch")


class PyTorchTrialContext(TrialContext):
    """Wraps models, optimizers and schedulers, and is asked where the training stands.

    Made by :func:`determined.pytorch.init`. What is wrapped is moved to ``device``, saved in
    checkpoints (in the order of wrapping) and used by the Trainer. ``models`` and ``optimizers`` list
    it.
    """

    def __init__(
        self,
        core_context: core.Context,
        trial_seed: int | None,
        hparams: dict[str, Any] | None,
        slots_per_trial: int,
        num_gpus: int,
        exp_conf: dict[str, Any] | None,
        aggregation_frequency: int = 1,
        steps_completed: int = 0,
        managed_training: bool = False,
        debug_enabled: bool = False,
        enable_tensorboard_logging: bool = True,
    ) -> None:
        super().__init__(core_context, trial_seed, hparams, exp_conf, steps_completed)
        if not isinstance(aggregation_frequency, int) or aggregation_frequency < 1:
            raise ValueError(
                f"aggregation_frequency must be a positive integer, found {aggregation_frequency!r}"
            )
        self.device = (
            torch.device("cuda", core_context.distributed.local_rank)
            if num_gpus
            else torch.device("cpu")
        )
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.experimental = PyTorchExperimentalContext(self)
        self._slots_per_trial = slots_per_trial
        self._managed = managed_training
        self._debug = debug_enabled
        self._tensorboard_logging = enable_tensorboard_logging
        core_context.train._log_for_tensorboard(enable_tensorboard_logging)
        self._aggregation_frequency = aggregation_frequency
        self._average_gradients: dict[Optimizer, bool] = {}
        self._scaler: Any = None
        self._auto_scaler: Any = None
        # An optimizer was stepped since the automatic scaler's last update.
        self._scaler_stepped = False
        self._reducers = Reducers(self.distributed.allgather)
        self._profiler: Any = None
        self._writer: Any = None
        self._warned_types: set[type] = set()
        # Set by the training loop.
        self._batch: int | None = None
        self._epoch_length: int | None = None

    # What is trained.

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """``model`` on the device, in training mode during ``train_batch``; use what is returned.

        Build optimizers after it. In a trial of several processes it averages their gradients
        (torch's DistributedDataParallel).
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"wrap_model() takes a torch.nn.Module, found {type(model).__name__}")
        model = model.to(self.device)
        if self.distributed.size > 1:
            model = _parallel.parallel(model, self.device)
        self.models.append(model)
        return model

    def wrap_optimizer(
        self,
        optimizer: Optimizer,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> Optimizer:
        """``optimizer`` for ``step_optimizer()``; use what is returned.

        ``average_aggregated_gradients``: whether gradients of several batches (``aggregation_frequency``)
        are averaged (by default, or as ``optimizations`` says) rather than summed. The two arguments
        in the middle belong to Horovod and have no effect.
        """
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"wrap_optimizer() takes a torch.optim.Optimizer, found {type(optimizer).__name__}"
            )
        if average_aggregated_gradients is None:
            section = self._exp_conf.get_optimizations_config()
            average_aggregated_gradients = bool(section.get("average_aggregated_gradients", True))
        self.optimizers.append(optimizer)
        self._average_gradients[optimizer] = average_aggregated_gradients
        return optimizer

    def wrap_lr_scheduler(
        self, lr_scheduler: Any, step_mode: LRScheduler.StepMode, frequency: int = 1
    ) -> Any:
        """``lr_scheduler``, stepped by the Trainer as ``step_mode`` says (see :class:`LRScheduler`)."""
        wrapped = LRScheduler(lr_scheduler, step_mode, frequency)
        optimizer = getattr(lr_scheduler, "optimizer", None)
        if optimizer is not None and optimizer not in self._average_gradients:
            raise ValueError(
                "the scheduler's optimizer is not wrapped: give the scheduler what "
                "context.wrap_optimizer() returned"
            )
        self.lr_schedulers.append(wrapped)
        return lr_scheduler

    def wrap_scaler(self, scaler: Any) -> Any:
        """A ``torch.amp.GradScaler`` for mixed precision by hand: it is saved in checkpoints.

        Scale losses and update it in ``train_batch``, and pass it to ``step_optimizer()``.
        """
        if self._auto_scaler is not None or self.experimental._auto_amp:
            raise ValueError(
                "experimental.use_amp() has a scaler of its own: leave out one of both"
            )
        if self._scaler is not None and self._scaler is not scaler:
            raise ValueError("wrap_scaler() was called already; a trial has one scaler")
        self._scaler = scaler
        return scaler

    def configure_apex_amp(self, models: Any, optimizers: Any, *args: Any, **kwargs: Any) -> Any:
        """Raises NotImplementedError: NVIDIA has ended apex.amp, torch.amp has its place."""
        raise NotImplementedError(
            "apex.amp is not supported: use context.experimental.use_amp(), or torch.amp with "
            "context.wrap_scaler()"
        )

    def _use_amp(self) -> None:
        if self._scaler is not None:
            raise ValueError("there is a scaler by wrap_scaler() already: leave out one of both")
        self._auto_scaler = torch.amp.GradScaler(
            self.device.type, enabled=self.device.type == "cuda"
        )

    def autocast_forward_pass(self, to_wrap: nn.Module) -> nn.Module:
        """``to_wrap`` with a forward pass in mixed precision."""
        to_wrap.forward = self._autocast()(to_wrap.forward)
        return to_wrap

    def _autocast(self) -> Any:
        dtype = torch.float16 if self.device.type == "cuda" else torch.bfloat16
        return torch.amp.autocast(self.device.type, dtype=dtype)

    # Training, from train_batch.

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """``loss.backward()``, scaled where ``use_amp()`` asks for it."""
        if self._auto_scaler is not None:
            loss = self._auto_scaler.scale(loss)
        loss.backward(gradient=gradient, retain_graph=retain_graph, create_graph=create_graph)

    def step_optimizer(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[Iterator[Any]], None] | None = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> None:
        """Step ``optimizer``, and zero its gradients unless ``auto_zero_grads`` is False.

        With ``aggregation_frequency`` n only every n-th call does anything: gradients add up between.
        ``clip_grads`` is called with the parameters, their gradients averaged and unscaled.
        ``scaler``: the one of ``wrap_scaler()``; its ``update()`` is the caller's.
        """
        frequency = self._aggregation_frequency
        if frequency > 1:
            if (self.current_train_batch() + 1) % frequency:
                return
            if self._average_gradients.get(optimizer, True):
                _divide(optimizer, frequency)
        if scaler is None:
            scaler = self._auto_scaler
        if clip_grads is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            clip_grads(p for group in optimizer.param_groups for p in group["params"])
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            self._scaler_stepped = True
        if auto_zero_grads:
            optimizer.zero_grad()

    def to_device(self, data: Any) -> Any:
        """``data`` on the device; see :func:`determined.pytorch.to_device`."""
        return _device.to_device(data, self.device, self._warned_types)

    # Where the training stands.

    def current_train_batch(self) -> int:
        """The number of the batch in training, counted from 0. Raises RuntimeError before the first."""
        if self._batch is None:
            raise RuntimeError("the training has not started: there is no current batch yet")
        return self._batch

    def current_train_epoch(self) -> int:
        """The number of the epoch in training, counted from 0. Raises RuntimeError before the first."""
        return self.current_train_batch() // self._batches_per_epoch()

    def is_epoch_start(self) -> bool:
        """Whether the batch in training is the first of its epoch."""
        return self.current_train_batch() % self._batches_per_epoch() == 0

    def is_epoch_end(self) -> bool:
        """Whether the batch in training is the last of its epoch."""
        return (self.current_train_batch() + 1) % self._batches_per_epoch() == 0

    def _batches_per_epoch(self) -> int:
        if self._epoch_length is None:
            raise RuntimeError("the training data has no length: there are no epochs")
        return self._epoch_length

    def get_global_batch_size(self) -> int:
        """Records in a batch, all processes together: the hyperparameter ``global_batch_size``.

        Raises errors.InvalidExperimentException when it is missing or no integer.
        """
        return util.calculate_batch_sizes(self._hparams, self._slots_per_trial, "PyTorchTrial")[1]

    def get_per_slot_batch_size(self) -> int:
        """Records in this process' part of a batch; raises as :meth:`get_global_batch_size`."""
        return util.calculate_batch_sizes(self._hparams, self._slots_per_trial, "PyTorchTrial")[0]

    # Metrics, charts, profiles.

    def wrap_reducer(
        self,
        reducer: Callable[[list[Any]], Any] | MetricReducer,
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """A metric of many batches, reduced and reported with the others under ``name``.

        A function of the list of all values becomes a :class:`SimpleMetricReducer`: give it values
        by ``update()`` of what is returned.
        """
        return self._reducers.wrap(reducer, name, for_training, for_validation)

    def reset_reducers(self) -> None:
        """Begin anew with all reducers; the Trainer does this before each validation."""
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
        """Whether reported metrics are written to TensorBoard files (on the cluster)."""
        return self._tensorboard_logging

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Write reported metrics to TensorBoard files, or do not."""
        if not isinstance(enable_tensorboard_logging, bool):
            raise TypeError(
                f"enable_tensorboard_logging is a bool, found {enable_tensorboard_logging!r}"
            )
        self._tensorboard_logging = enable_tensorboard_logging
        self._core.train._log_for_tensorboard(enable_tensorboard_logging)

    def get_tensorboard_writer(self) -> Any:
        """A ``torch.utils.tensorboard.SummaryWriter`` for what the trial itself wants charted.

        Its files go to :meth:`get_tensorboard_path`. Raises ImportError when the package tensorboard
        is not installed.
        """
        if self._writer is None:
            if importlib.util.find_spec("tensorboard") is None:
                raise ImportError(
                    "TensorBoard files need its package: "
                    "pip install 'determined-prefect[tensorboard]'"
                )
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(log_dir=str(self.get_tensorboard_path()))
        return self._writer

    def _flush_writer(self) -> None:
        """What the trial has written so far goes to its file, from where it is uploaded."""
        if self._writer is not None:
            self._writer.flush()


def _divide(optimizer: Optimizer, divisor: int) -> None:
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    if gradients:
        torch._foreach_div_(gradients, float(divisor))
