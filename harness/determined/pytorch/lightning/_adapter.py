"""The trial class that trains a LightningModule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn

from determined import errors, pytorch
from determined.pytorch import _precision
from determined.pytorch.lightning._hooks import Hooks, TrainerView
from determined.pytorch.lightning._optimizers import configured

# Hooks that only Lightning's own Trainer calls: to leave them out in silence would train another model.
REFUSED = (
    "backward",
    "configure_gradient_clipping",
    "configure_model",
    "lr_scheduler_step",
    "on_after_backward",
    "on_after_batch_transfer",
    "on_before_backward",
    "on_before_batch_transfer",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "optimizer_step",
    "optimizer_zero_grad",
    "transfer_batch_to_device",
)


class LightningAdapter(pytorch.PyTorchTrial):
    """Subclass it: give the module to ``__init__`` and add the two data loaders.

    ::

        class Digits(LightningAdapter):
            def __init__(self, context):
                super().__init__(context, lightning_module=DigitsModule(context.get_hparam("lr")))

            def build_training_data_loader(self): ...  # a determined.pytorch.DataLoader
            def build_validation_data_loader(self): ...

    The adapter uses these parts of the module: ``prepare_data``, ``setup``, ``configure_optimizers`` (one
    optimizer), ``training_step`` and ``validation_step``, ``log`` and ``log_dict``, the hooks around
    training, epochs, batches, validations and checkpoints. Metrics are the logged values, the loss, and the
    scalars of a dict that ``validation_step`` returns. ``self.trainer`` has ``current_epoch``,
    ``global_step`` and the ranks.

    Args:
        precision: 32, or 16 for mixed precision by torch.amp. amp_backend: "native"; NVIDIA no
        longer develops apex.amp. amp_level: an option of apex.amp, without effect.

    Raises errors.InvalidModelException for manual optimization and for overridden hooks that only
    Lightning's own Trainer calls (those train with :mod:`determined.lightning`).
    """

    def __init__(
        self,
        context: pytorch.PyTorchTrialContext,
        lightning_module: LightningModule,
        precision: int | str = 32,
        amp_backend: str = "native",
        amp_level: str = "O2",
    ) -> None:
        super().__init__(context)
        _check(lightning_module)
        if str(precision) not in ("16", "32"):
            raise ValueError(f"precision must be 16 or 32, found {precision!r}")
        if amp_backend != "native":
            raise ValueError(f"amp_backend must be 'native' (torch.amp), found {amp_backend!r}")
        if str(precision) == "16":
            context.experimental.use_amp()
        self.lightning_module = lightning_module
        # What the module has logged since it was last asked.
        self._logged: dict[str, Any] = {}
        lightning_module.log = self._log  # type: ignore[method-assign,unused-ignore]
        lightning_module.log_dict = self._log_dict  # type: ignore[method-assign,unused-ignore]
        self._view = TrainerView(context)
        lightning_module.trainer = self._view  # type: ignore[assignment,unused-ignore]
        if context.distributed.local_rank == 0:
            lightning_module.prepare_data()
        context.distributed.allgather_local(None)
        lightning_module.setup("fit")
        self._training_step = context.wrap_model(TrainingStep(lightning_module))
        optimizer, self._schedules = configured(lightning_module)
        self._optimizer = context.wrap_optimizer(optimizer)
        self._validation_step = _with_idx(lightning_module.validation_step)
        if context._auto_amp:
            mixed = _precision.MixedForward(self._validation_step, context.device.type)
            self._validation_step = mixed
        for schedule in self._schedules:
            modes = pytorch.LRScheduler.StepMode
            mode, every = modes.STEP_EVERY_EPOCH, schedule.frequency
            if schedule.is_plateau:
                mode = modes.MANUAL_STEP
            elif schedule.interval == "step":
                # Lightning counts steps of the optimizer.
                mode, every = modes.STEP_EVERY_BATCH, every * context._aggregation_frequency
            context.wrap_lr_scheduler(schedule.scheduler, mode, every)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        module = self.lightning_module
        self._view.current_epoch, self._view.global_step = epoch_idx, batch_idx
        within = batch_idx - epoch_idx * (self.context._epoch_length or 0)
        module.on_train_batch_start(batch, within)
        output = self._training_step(batch, within)
        loss = output["loss"] if isinstance(output, Mapping) else output
        if not isinstance(loss, torch.Tensor):
            raise errors.InvalidModelException(
                "training_step() must return the loss, or a dict with the key 'loss'; "
                f"found {output!r}"
            )
        self.context.backward(loss)
        self.context.step_optimizer(self._optimizer)
        module.on_train_batch_end(output, batch, within)
        return {"loss": loss.detach(), **self._take_logged()}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        module = self.lightning_module
        module.on_validation_batch_start(batch, batch_idx)
        output = self._validation_step(batch, batch_idx)
        module.on_validation_batch_end(output, batch, batch_idx)
        returned = dict(output) if isinstance(output, Mapping) else {}
        scalars = {name: value for name, value in returned.items() if _is_scalar(value)}
        return {**scalars, **self._take_logged()}

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        """The module's hooks; a subclass that adds callbacks adds them to these."""
        dist = self.context.distributed
        hooks = Hooks(self.lightning_module, self._schedules, self._take_logged, dist)
        return {"lightning_module": hooks}

    def _log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """``self.log()`` of the module; arguments about steps, progress bars and loggers have no effect."""
        if not _is_scalar(value):
            raise TypeError(
                f"self.log({name!r}, ...) takes a number or a tensor with one number, found "
                f"{type(value).__name__}; of a torchmetrics.Metric log the result of compute()"
            )
        self._logged[name] = value.detach() if isinstance(value, torch.Tensor) else value

    def _log_dict(self, dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        for name, value in dictionary.items():
            self._log(name, value)

    def _take_logged(self) -> dict[str, Any]:
        logged, self._logged = self._logged, {}
        return logged


class TrainingStep(nn.Module):
    """``training_step`` as a forward pass, because DistributedDataParallel sees only forward passes.

    Its state is the module's, without a prefix.
    """

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.lightning_module = module
        self._step = _with_idx(module.training_step)

    def forward(self, batch: Any, batch_idx: int) -> Any:
        return self._step(batch, batch_idx)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.lightning_module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.lightning_module.load_state_dict(*args, **kwargs)


def _with_idx(step: Callable[..., Any]) -> Callable[[Any, int], Any]:
    """``step(batch, batch_idx)``, whether or not it takes the second."""
    if len(inspect.signature(step).parameters) > 1:
        return step
    return lambda batch, batch_idx: step(batch)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, torch.Tensor) and value.numel() == 1
    )


def _check(module: LightningModule) -> None:
    name = type(module).__name__
    if not isinstance(module, LightningModule):
        raise TypeError(f"lightning_module must be a LightningModule, found {name}")
    if not module.automatic_optimization:
        raise errors.InvalidModelException(
            f"{name} optimizes by hand (automatic_optimization = False): write it as a PyTorchTrial, or "
            "train it with Lightning's Trainer and determined.lightning"
        )
    overridden = [
        hook
        for hook in REFUSED
        if getattr(type(module), hook, None) is not getattr(LightningModule, hook, None)
    ]
    if overridden:
        raise errors.InvalidModelException(
            f"{name} overrides {', '.join(overridden)}, which LightningAdapter does not call; train it "
            "with Lightning's Trainer and determined.lightning"
        )
