"""Keeps the metrics of batches cheaply in the loop, and averages them when they are reported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from determined import errors

logger = logging.getLogger("determined.pytorch")

Snapshot = Callable[[Any], dict[str, Any]]


def snapshotter(device: torch.device) -> Snapshot:
    """A function that copies the result of ``train_batch``, so that later changes do not matter.

    On a CPU scalars become numbers at once, which is cheaper than any copy. On another device they stay
    there: reading their values would wait for the device after each batch.
    """
    keep = _number if device.type == "cpu" else _copy

    def snapshot(output: Any) -> dict[str, Any]:
        if type(output) is dict:
            return {
                name: keep(value) if isinstance(value, torch.Tensor) else value
                for name, value in output.items()
            }
        if isinstance(output, torch.Tensor):
            return {"loss": keep(output)}
        if isinstance(output, Mapping):
            return snapshot(dict(output))
        raise errors.InvalidModelException(
            "train_batch() must return the loss (a tensor) or a dict of metrics, "
            f"found {type(output).__name__}"
        )

    return snapshot


def _number(value: torch.Tensor) -> Any:
    return value.item() if value.numel() == 1 else value.detach().clone()


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach() if value.grad_fn is not None else value.detach().clone()


def settled(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``batches`` with numbers and numpy arrays for tensors; one transfer per metric."""
    for name in {name for batch in batches for name in batch}:
        held = [batch for batch in batches if isinstance(batch.get(name), torch.Tensor)]
        if not held:
            continue
        values = [batch[name] for batch in held]
        if all(value.numel() == 1 for value in values):
            plain = torch.stack([value.reshape(()) for value in values]).tolist()
        else:
            plain = [numpy_of(value) for value in values]
        for batch, value in zip(held, plain, strict=True):
            batch[name] = value
    return batches


def numpy_of(value: Any) -> Any:
    """Tensors as numpy arrays (bfloat16, which numpy lacks, as float32); other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def one_number(value: Any, name: str) -> float:
    """The searcher's metric ``name``. Raises errors.InvalidModelException when it is not one number."""
    array = np.asarray(numpy_of(value))
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise errors.InvalidModelException(
            f"searcher.metric is {name!r}, which must be one number, but the validation gives {value!r}"
        )
    number: float = array.item()
    return number


class Averager:
    """Averages of the metrics of batches; warns once of each metric without an average."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def __call__(self, batches: list[dict[str, Any]]) -> dict[str, Any]:
        """For each metric, the mean over the batches that have it."""
        collected: dict[str, list[Any]] = {}
        for batch in batches:
            for name, value in batch.items():
                collected.setdefault(name, []).append(value)
        averages = {}
        for name, values in collected.items():
            try:
                averages[name] = _mean(values)
            except (TypeError, ValueError):
                if name not in self._warned:
                    self._warned.add(name)
                    logger.warning(
                        "the training metric %r is not reported, because %r cannot be averaged",
                        name,
                        values[-1],
                    )
        return averages


def _mean(values: list[Any]) -> Any:
    if all(isinstance(value, int | float) for value in values):
        return sum(values) / len(values)
    mean = np.mean(np.array(values, dtype=np.float64), axis=0)
    return float(mean.item()) if mean.size == 1 else mean
