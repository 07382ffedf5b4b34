"""Hooks into the training."""

from __future__ import annotations

import inspect
from typing import Any


class PyTorchCallback:
    """Override what you need, and return an object from ``PyTorchTrial.build_callbacks()``.

    The order of calls, in every process of the trial; only the chief calls hooks marked "chief"::

        on_trial_startup
        [on_checkpoint_load_start, load_state_dict]                     going on from a checkpoint
        on_training_start
          on_training_epoch_start ... on_training_epoch_end             around the batches of an epoch
          on_training_workload_end                                      after each report of metrics
          on_validation_start, on_validation_epoch_start,
            on_validation_epoch_end, on_validation_end
          state_dict, on_checkpoint_save_start, on_checkpoint_write_end,  chief
            on_checkpoint_upload_end
        on_trial_shutdown                                               also after an exception

    A training that goes on in mid-epoch does not start that epoch again.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Called before anything is loaded; ``first_batch_idx`` is the number of the first batch to train."""

    def on_trial_shutdown(self) -> None:
        """The last call, in any case: undo here what on_trial_startup did."""

    def on_training_start(self) -> None:
        """Called after the state is loaded, before the first batch."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Epochs count from 0."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """After the learning rate schedulers of the epoch have stepped."""

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """Training metrics were averaged and reported; ``batch_metrics`` has one dict per batch."""

    def on_validation_start(self) -> None:
        """Models are in evaluation mode."""

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """``metrics`` are those of the whole validation; changes to the dict are reported."""

    def on_validation_epoch_start(self) -> None:
        """Called before the first batch (evaluate_batch only)."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """``outputs``: what evaluate_batch returned, one dict per batch of this process."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """``checkpoint`` will be loaded next, and may be changed here."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """``checkpoint`` will be written next, and may be changed or extended here."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """The old name of on_checkpoint_write_end; called right before it."""

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """The files are in ``checkpoint_dir``; files that are written there now become part of the
        checkpoint.
        """

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """The checkpoint is stored. With ``async_checkpoints`` the training has gone on meanwhile."""

    def state_dict(self) -> dict[str, Any]:
        """The state to keep in checkpoints; must be picklable."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that state_dict() returned."""


HOOKS = tuple(name for name in vars(PyTorchCallback) if name.startswith("on_"))


class Callbacks:
    """All callbacks of a trial; a hook is called only where it is overridden."""

    def __init__(self, named: dict[str, PyTorchCallback]) -> None:
        self.named = named

    def overriding(self, hook: str) -> list[Any]:
        """The bound methods of ``hook``, in the order of the callbacks."""
        base = getattr(PyTorchCallback, hook)
        return [
            getattr(callback, hook)
            for callback in self.named.values()
            if getattr(type(callback), hook, None) is not base or hook in vars(callback)
        ]

    def call(self, hook: str, *args: Any, **kwargs: Any) -> None:
        for method in self.overriding(hook):
            method(*args, **kwargs)

    def start_epoch(self, epoch: int) -> None:
        """The hook had no argument in early releases."""
        for method in self.overriding("on_training_epoch_start"):
            method(epoch) if inspect.signature(method).parameters else method()

    def state_dicts(self) -> dict[str, dict[str, Any]]:
        return {name: callback.state_dict() for name, callback in self.named.items()}

    def load_state_dicts(self, states: dict[str, dict[str, Any]]) -> list[str]:
        """Give each callback its state. Returns the names that are not known any more."""
        for name, callback in self.named.items():
            if name in states:
                callback.load_state_dict(states[name])
        return sorted(set(states) - set(self.named))
