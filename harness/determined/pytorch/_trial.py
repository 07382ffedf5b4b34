"""The class that users write."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from determined import errors
from determined._trial import LegacyTrial
from determined.pytorch._callback import PyTorchCallback
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._data import DataLoader
from determined.pytorch._device import data_length
from determined.pytorch._reducer import Reducer


class PyTorchTrial(LegacyTrial):
    """A training: models and data, how to train on one batch, and how to validate.

    Subclasses build models, optimizers and schedulers in ``__init__`` and give them to
    ``context.wrap_model()``, ``wrap_optimizer()``, ``wrap_lr_scheduler()``. The Trainer then calls, in this
    order: ``build_callbacks``, ``build_training_data_loader``, ``build_validation_data_loader``, and
    ``train_batch`` for batch after batch, with validations by ``evaluate_batch`` (or
    ``evaluate_full_dataset``) in between. Checkpoints hold the wrapped objects, the callbacks' states, the
    random generators and the position in the data. They do not hold the trial's other attributes: after a
    resume ``__init__`` has made these again.
    """

    # trial_controller_class is set by the module of the training loop.
    trial_context_class = PyTorchTrialContext

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context

    @abc.abstractmethod
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Train on ``batch``: forward, ``context.backward(loss)``, ``context.step_optimizer(optimizer)``.

        Returns the loss, or a dict of metrics (numbers, scalar tensors), averaged when they are reported.
        ``batch_idx`` counts all batches of the training from 0.
        """

    @abc.abstractmethod
    def build_training_data_loader(self) -> DataLoader | TorchDataLoader[Any]:
        """The training data, in batches of ``context.get_per_slot_batch_size()`` records."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> DataLoader | TorchDataLoader[Any]:
        """The validation data."""

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Callbacks by name; the names are kept in checkpoints."""
        return {}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Validation metrics of one batch, reduced as ``evaluation_reducer()`` says.

        Define this or :meth:`evaluate_full_dataset`. Gradients are off, models in evaluation mode.
        """
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """The reducer that combines the batches' values of a metric of ``evaluate_batch``: for all metrics,
        or by name (AVG for the others)."""
        return Reducer.AVG

    def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> dict[str, Any]:
        """Validation metrics of all the data, computed in the chief only."""
        raise NotImplementedError

    def get_batch_length(self, batch: Any) -> int:
        """Records in ``batch``: its weight in averages. Override it for batches of another structure."""
        return data_length(batch)


def evaluates_batches(trial: Any, base: type[Any]) -> bool:
    """True if the trial, of a subclass of ``base``, defines evaluate_batch rather than evaluate_full_dataset.

    Raises errors.InvalidModelException for both and for neither.
    """
    batch, full = (
        getattr(type(trial), name) is not getattr(base, name)
        for name in ("evaluate_batch", "evaluate_full_dataset")
    )
    if batch == full:
        found = "both" if batch else "neither"
        raise errors.InvalidModelException(
            f"{type(trial).__name__} must define evaluate_batch() or evaluate_full_dataset(), "
            f"found {found}"
        )
    return batch


def by_name(method: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """``method`` for arguments in the order of ``names``.

    It gets them by name if its own order differs, or if it takes them as ``**kwargs``. If it uses other
    names, it gets them by position.
    """
    signature = inspect.signature(method)
    if tuple(signature.parameters)[: len(names)] == names:
        named = signature.parameters[names[-1]].kind is inspect.Parameter.KEYWORD_ONLY
    else:
        try:
            signature.bind(**dict.fromkeys(names))
        except TypeError:
            named = False
        else:
            named = True
    if not named:
        return method
    return lambda *values: method(**dict(zip(names, values, strict=True)))


def takes_batch_idx(trial: Any) -> bool:
    """True if evaluate_batch takes the batch's number, which early releases did not pass."""
    parameters = list(inspect.signature(trial.evaluate_batch).parameters.values())
    kinds = {parameter.kind for parameter in parameters}
    return len(parameters) > 1 or inspect.Parameter.VAR_POSITIONAL in kinds
