"""The class that users of DeepSpeed write."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from determined import errors
from determined._trial import LegacyTrial
from determined.pytorch._callback import PyTorchCallback
from determined.pytorch._data import DataLoader
from determined.pytorch._device import data_length
from determined.pytorch._reducer import Reducer
from determined.pytorch.deepspeed._context import DeepSpeedTrialContext


class DeepSpeedTrial(LegacyTrial):
    """A training with DeepSpeed's engines: models and data, how to train on one batch, how to validate.

    Subclasses make engines in ``__init__`` by ``deepspeed.initialize()`` (model, optimizer and scheduler are
    the engine's) and give them to ``context.wrap_model_engine()``. The Trainer calls the other methods in the
    order of :class:`determined.pytorch.PyTorchTrial`'s.

    A batch is the data for one step of the engine's optimizer: ``train_batch_size`` records, which are in
    each process ``gradient_accumulation_steps`` micro-batches of ``train_micro_batch_size_per_gpu``
    records. Data loaders give micro-batches; lengths, periods and ``batch_idx`` count batches.

    Engines, callbacks' states and random generators of every process, and the position in the data are in
    checkpoints. Callbacks are called in every process, those around checkpoints, too.
    """

    # trial_controller_class is set by the module of the training loop.
    trial_context_class = DeepSpeedTrialContext

    def __init__(self, context: DeepSpeedTrialContext) -> None:
        self.context = context

    @abc.abstractmethod
    def train_batch(
        self, dataloader_iter: Iterator[Any] | None, epoch_idx: int, batch_idx: int
    ) -> Any:
        """Train on the next micro-batch of ``dataloader_iter``: the engine's forward, ``backward(loss)``,
        ``step()``.

        It is called for each micro-batch of a batch with the same ``batch_idx``, unless
        ``context.disable_auto_grad_accumulation()`` was called. With a pipeline engine it is called once, and
        ``engine.train_batch(dataloader_iter)`` does it all. ``dataloader_iter`` is None in a process that
        reads no data.

        Returns the loss, or a dict of metrics, averaged over micro-batches and processes. The result is
        ignored in a process whose ``ModelParallelUnit`` says that it reports no metrics.
        """

    @abc.abstractmethod
    def build_training_data_loader(self) -> DataLoader | TorchDataLoader[Any] | None:
        """The training data, in micro-batches. Called in processes that read data."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> DataLoader | TorchDataLoader[Any] | None:
        """The validation data, in micro-batches. Called in processes that read data."""

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Callbacks by name; the names are kept in checkpoints."""
        return {}

    def evaluate_batch(
        self, dataloader_iter: Iterator[Any] | None, batch_idx: int
    ) -> dict[str, Any]:
        """Validation metrics of the next micro-batch of ``dataloader_iter``, reduced as
        ``evaluation_reducer()`` says; with a pipeline engine those of ``engine.eval_batch(dataloader_iter)``.

        Define this or :meth:`evaluate_full_dataset`. Gradients are off, engines in evaluation mode. All
        processes evaluate the same number of batches, because an engine may need all of them for each
        batch. Surplus batches of some processes are left out.
        """
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """The reducer that combines the batches' values of a metric of ``evaluate_batch``: for all metrics,
        or by name (AVG for the others)."""
        return Reducer.AVG

    def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> dict[str, Any]:
        """Validation metrics of all the data, computed in the chief only.

        Do not define it for engines that need all processes (ZeRO stage 3, pipelines).
        """
        raise NotImplementedError

    def get_batch_length(self, batch: Any) -> int:
        """Records in ``batch``: its weight in averages. Override it for batches of another structure."""
        return data_length(batch)

    def save(self, context: DeepSpeedTrialContext, path: Path) -> None:
        """Write the engines' part of a checkpoint to the directory ``path``; called in every process.

        Override it and :meth:`load` to save more, or in another way.
        """
        for index, engine in enumerate(context.models):
            engine.save_checkpoint(str(path), tag=_tag(index))

    def load(self, context: DeepSpeedTrialContext, load_path: Path) -> None:
        """Load what :meth:`save` wrote, in every process.

        Raises errors.InvalidCheckpointException when an engine finds nothing to load.
        """
        for index, engine in enumerate(context.models):
            try:
                loaded, _ = engine.load_checkpoint(str(load_path), tag=_tag(index))
            except AssertionError as error:
                # Many of DeepSpeed's have no text.
                raise errors.InvalidCheckpointException(
                    f"DeepSpeed cannot load {load_path / _tag(index)}: {error or 'assertion failed'}"
                ) from error
            if loaded is None:
                raise errors.InvalidCheckpointException(
                    f"DeepSpeed found no checkpoint for engine {index} in {load_path / _tag(index)}"
                )


def _tag(index: int) -> str:
    return f"model{index}"
