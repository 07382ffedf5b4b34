"""One validation of a trial."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from determined import errors
from determined.pytorch import _data, _metrics
from determined.pytorch._callback import Callbacks
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._data import DataLoader
from determined.pytorch._reducer import Reducer
from determined.pytorch._trial import (
    PyTorchTrial,
    by_name,
    evaluates_batches,
    takes_batch_idx,
)


class Validation:
    """Evaluates a trial's models; the same object for all validations of a training."""

    trial_class: type[Any] = PyTorchTrial
    # Of the trial's evaluate_batch.
    arguments = ("batch", "batch_idx")

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        callbacks: Callbacks,
        test_mode: bool,
    ) -> None:
        self._trial = trial
        self._context = context
        self._callbacks = callbacks
        self._test_mode = test_mode
        self._by_batch = evaluates_batches(trial, self.trial_class)
        self._with_idx = self._by_batch and takes_batch_idx(trial)
        names = self.arguments if self._with_idx else self.arguments[:1]
        self._evaluate_batch = by_name(trial.evaluate_batch, names)
        self._loader = self._build_loader()

    def _build_loader(self) -> Any:
        dist = self._context.distributed
        return self._shared_out(dist.size, dist.rank)

    def _shared_out(self, num_replicas: int, rank: int) -> Any:
        """The loader of this rank's batches."""
        loader: Any = self._trial.build_validation_data_loader()
        # Said before the training rather than after it.
        if loader is None or _data.length_of(loader) == 0:
            raise errors.InvalidModelException(
                "build_validation_data_loader() must return a data loader with a batch or more, found "
                f"{'none in it: is the dataset empty?' if loader is not None else loader}"
            )
        if isinstance(loader, DataLoader):
            # A full dataset is evaluated by the chief alone.
            share = (num_replicas, rank) if self._by_batch else (1, 0)
            loader = loader.get_data_loader(False, 0, *share)
        elif num_replicas > 1 and self._by_batch and not self._context._repro_checks_disabled:
            raise errors.InvalidModelException(
                "build_validation_data_loader() must return a determined.pytorch.DataLoader, found "
                f"{type(loader).__module__}.{type(loader).__name__}: each of {num_replicas} processes would "
                "evaluate all of it; if it gives each process its own share, call "
                "disable_dataset_reproducibility_checks()"
            )
        return loader

    @torch.no_grad()
    def __call__(self) -> dict[str, Any]:
        """The metrics, in every process."""
        context = self._context
        context.reset_reducers()
        for model in context.models:
            model.eval()
        self._callbacks.call("on_validation_start")
        metrics = self._batches() if self._by_batch else self._full()
        metrics.update(context._reducers.reduce(for_training=False))
        self._callbacks.call("on_validation_end", metrics)
        return metrics

    def _batches(self) -> dict[str, Any]:
        outputs: list[dict[str, Any]] = []
        lengths: list[int] = []
        self._callbacks.call("on_validation_epoch_start")
        for output, length in self._evaluated():
            if not isinstance(output, dict):
                raise errors.InvalidModelException(
                    f"evaluate_batch() must return a dict of metrics, found {type(output).__name__}"
                )
            outputs.append({name: _metrics.numpy_of(value) for name, value in output.items()})
            lengths.append(length)
            if self._test_mode:
                break
        self._callbacks.call("on_validation_epoch_end", outputs)
        gathered = self._context.distributed.allgather((outputs, lengths))
        outputs = [output for part, _ in gathered for output in part]
        lengths = [length for _, part in gathered for length in part]
        return self._reduce(outputs, lengths)

    def _evaluated(self) -> Iterator[tuple[Any, int]]:
        """The result of evaluate_batch for each batch, and the batch's number of records."""
        context = self._context
        for idx, batch in enumerate(self._loader):
            if context._auto_to_device:
                batch = context.to_device(batch)
            length = self._trial.get_batch_length(batch)
            yield self._evaluate(batch, idx), length

    def _evaluate(self, batch: Any, idx: int) -> Any:
        return self._evaluate_batch(batch, idx) if self._with_idx else self._evaluate_batch(batch)

    def _reduce(self, outputs: list[dict[str, Any]], lengths: list[int]) -> dict[str, Any]:
        if not outputs:
            raise errors.InvalidModelException(
                "the validation data loader gives no batch: check that the dataset is not empty"
            )
        names = list(outputs[0])
        for output in outputs:
            if output.keys() != outputs[0].keys():
                raise errors.InvalidModelException(
                    "evaluate_batch() must return the same metrics for every batch; found "
                    f"{', '.join(map(str, names))} and {', '.join(map(str, output))}"
                )
        reducers = self._trial.evaluation_reducer()
        if isinstance(reducers, dict):
            unknown = sorted(set(reducers) - set(names))
            if unknown:
                raise errors.InvalidModelException(
                    f"evaluation_reducer() names {', '.join(unknown)}, which evaluate_batch() does "
                    f"not return; it returns {', '.join(map(str, names))}"
                )
        elif not isinstance(reducers, Reducer):
            raise errors.InvalidModelException(
                "evaluation_reducer() must return a pytorch.Reducer, or a dict of them by metric; "
                f"found {reducers!r}"
            )
        metrics = {}
        for name in names:
            reducer = reducers.get(name, Reducer.AVG) if isinstance(reducers, dict) else reducers
            values = [output[name] for output in outputs]
            try:
                metrics[name] = reducer(values, lengths)
            except (TypeError, ValueError) as error:
                raise errors.InvalidModelException(
                    f"Reducer.{reducer.name} takes numbers, or arrays of one shape; evaluate_batch() gives "
                    f"for {name!r} {', '.join(map(repr, values[:3]))}"
                ) from error
        return metrics

    def _full(self) -> dict[str, Any]:
        context = self._context
        metrics: Any = None
        if context.distributed.rank == 0:
            metrics = by_name(self._trial.evaluate_full_dataset, ("data_loader",))(self._loader)
            if not isinstance(metrics, dict):
                raise errors.InvalidModelException(
                    "evaluate_full_dataset() must return a dict of metrics, "
                    f"found {type(metrics).__name__}"
                )
            metrics = {name: _metrics.numpy_of(value) for name, value in metrics.items()}
        broadcast: dict[str, Any] = context.distributed.broadcast(metrics)
        return broadcast
