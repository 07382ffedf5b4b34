"""The context of a PyTorchTrial."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from determined import core, errors
from determined.pytorch import _parallel, _precision
from determined.pytorch._lr_scheduler import LRScheduler
from determined.pytorch._training_context import TrainingContext

logger = logging.getLogger("determined.pytorch")


class PyTorchTrialContext(TrainingContext):
    """Wraps models, optimizers and schedulers, and answers questions about the training.

    Made by :func:`determined.pytorch.init`. Wrapped objects are moved to ``device``, saved in checkpoints
    (in the order of wrapping) and used by the Trainer. ``models`` and ``optimizers`` list them.
    """

    models: list[nn.Module]

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
        super().__init__(
            core_context,
            trial_seed,
            hparams,
            slots_per_trial,
            num_gpus,
            exp_conf,
            steps_completed,
            managed_training,
            enable_tensorboard_logging,
        )
        if not isinstance(aggregation_frequency, int) or aggregation_frequency < 1:
            raise ValueError(
                f"aggregation_frequency must be a positive integer, found {aggregation_frequency!r}"
            )
        self.optimizers: list[Optimizer] = []
        self.experimental = PyTorchExperimentalContext(self)
        self._debug = debug_enabled
        self._aggregation_frequency = aggregation_frequency
        self._average_gradients: dict[Optimizer, bool] = {}
        self._scaler: Any = None
        self._auto_scaler: Any = None
        # An optimizer was stepped since the automatic scaler's last update.
        self._scaler_stepped = False

    # What is trained.

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """``model`` on the device, in training mode during ``train_batch``; use the returned model.

        Build optimizers after it. In a trial of several processes it averages their gradients
        (torch's DistributedDataParallel).
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"wrap_model() takes a torch.nn.Module, found {type(model).__name__}")
        model = model.to(self.device)
        if self.distributed.size > 1:
            model = _parallel.parallel(model, self.device)
        if self._auto_amp:
            model = self.autocast_forward_pass(model)
        self.models.append(model)
        return model

    def wrap_optimizer(
        self,
        optimizer: Optimizer,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> Optimizer:
        """``optimizer`` for ``step_optimizer()``; use the returned optimizer.

        ``average_aggregated_gradients``: whether gradients of several batches (``aggregation_frequency``)
        are averaged (by default, or as ``optimizations`` says) rather than summed. The two arguments before
        it are for Horovod and have no effect.
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
        """``lr_scheduler``, stepped by the Trainer as ``step_mode`` says (see :class:`LRScheduler`).

        Raises ValueError when its optimizer is not wrapped, errors.InvalidModelException for a
        ReduceLROnPlateau that the trial does not step itself.
        """
        if (
            isinstance(lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
            and step_mode is not LRScheduler.StepMode.MANUAL_STEP
        ):
            raise errors.InvalidModelException(
                "the steps of a ReduceLROnPlateau need a metric: wrap it with StepMode.MANUAL_STEP, and call "
                f"step(metric), e.g. in a callback's on_validation_end(); found {step_mode}"
            )
        wrapped = LRScheduler(lr_scheduler, step_mode, frequency)
        optimizer = getattr(lr_scheduler, "optimizer", None)
        if optimizer is not None and optimizer not in self._average_gradients:
            raise ValueError(
                "the scheduler's optimizer is not wrapped: give the scheduler the optimizer that "
                "context.wrap_optimizer() returned"
            )
        self.lr_schedulers.append(wrapped)
        return lr_scheduler

    def wrap_scaler(self, scaler: Any) -> Any:
        """A ``torch.amp.GradScaler`` for mixed precision by hand: it is saved in checkpoints.

        Scale losses and update the scaler in ``train_batch``, and pass it to ``step_optimizer()``.
        """
        if self._auto_scaler is not None or self._auto_amp:
            raise ValueError(
                "experimental.use_amp() brings its own scaler: call use_amp() or wrap_scaler(), not both"
            )
        if self._scaler is not None and self._scaler is not scaler:
            raise ValueError(
                "wrap_scaler() was called already: call it once, since a trial has one scaler"
            )
        self._scaler = scaler
        return scaler

    def configure_apex_amp(self, models: Any, optimizers: Any, *args: Any, **kwargs: Any) -> Any:
        """Raises NotImplementedError: NVIDIA no longer develops apex.amp; torch.amp replaces it."""
        raise NotImplementedError(
            "apex.amp is not supported: use context.experimental.use_amp(), or torch.amp with "
            "context.wrap_scaler()"
        )

    def _use_amp(self) -> None:
        if self._auto_amp:
            return
        if self._scaler is not None:
            raise ValueError(
                "wrap_scaler() was called already: use use_amp() or wrap_scaler(), not both"
            )
        self._auto_scaler = torch.amp.GradScaler(
            self.device.type, enabled=self.device.type == "cuda"
        )
        self._auto_amp = True
        for model in self.models:
            self.autocast_forward_pass(model)

    def autocast_forward_pass(self, to_wrap: nn.Module) -> nn.Module:
        """``to_wrap`` with a forward pass in mixed precision, which returns float32."""
        to_wrap.forward = _precision.MixedForward(to_wrap.forward, self.device.type)
        return to_wrap

    def _update_scaler(self) -> None:
        """Update the scaler, once per batch, after the steps of all optimizers."""
        if self._scaler_stepped:
            self._scaler_stepped = False
            self._auto_scaler.update()

    # Training, from train_batch.

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Call ``loss.backward()``, with a scaled loss if ``use_amp()`` was called."""
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

        With ``aggregation_frequency`` n only every n-th call does anything; between these calls gradients
        add up. ``clip_grads`` is called with the parameters, their gradients averaged and unscaled.
        ``scaler``: the one of ``wrap_scaler()``; its ``update()`` is the caller's.

        Raises errors.InvalidModelException if the trial zeroes gradients that must add up.
        """
        frequency = self._aggregation_frequency
        if frequency > 1:
            if not auto_zero_grads:
                raise errors.InvalidModelException(
                    f"with aggregation_frequency {frequency} step_optimizer() zeroes gradients itself, after "
                    "the steps it makes: leave auto_zero_grads=False and your zero_grad() out"
                )
            if (self.current_train_batch() + 1) % frequency:
                return
            if self._average_gradients.get(optimizer, True):
                _divide(optimizer, frequency)
        if scaler is None:
            scaler = self._auto_scaler
        if clip_grads is not None:
            if scaler is not None:
                _precision.unscale(scaler, optimizer)
            clip_grads(p for group in optimizer.param_groups for p in group["params"])
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            self._scaler_stepped = True
        if auto_zero_grads:
            optimizer.zero_grad()


def _divide(optimizer: Optimizer, divisor: int) -> None:
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    if gradients:
        torch._foreach_div_(gradients, float(divisor))


class PyTorchExperimentalContext:
    """``context.experimental``: switches that may change between releases, for the trial's ``__init__``."""

    def __init__(self, parent: PyTorchTrialContext) -> None:
        self._parent = parent

    def use_amp(self) -> None:
        """Mixed precision without further code: the forward pass of each wrapped model runs under
        torch's autocast (float16 on GPUs, bfloat16 elsewhere) and returns float32, losses are scaled on
        GPUs.
        """
        self._parent._use_amp()

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow data loaders other than ``pytorch.DataLoader``.

        Every process of the trial reads all of their data, after a resume from the beginning.
        """
        self._parent._repro_checks_disabled = True

    def disable_auto_to_device(self) -> None:
        """Pass batches to the trial as the loader gives them; the trial calls ``context.to_device()``
        itself.
        """
        self._parent._auto_to_device = False
