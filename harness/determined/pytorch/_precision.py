"""Mixed precision: models that compute in it, and gradients that are scaled for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from determined.pytorch import _device


class MixedForward:
    """A model's ``forward`` under torch's autocast; the results are converted to float32.

    So losses and metrics are computed in full precision, as torch advises. Some cannot be computed
    otherwise (binary_cross_entropy on GPUs, numpy arrays of bfloat16). This is an object, not a function,
    so that the copy of a model computes with the copy's weights.
    """

    def __init__(self, forward: Callable[..., Any], device_type: str) -> None:
        self._forward = forward
        self._device_type = device_type
        self._dtype = torch.float16 if device_type == "cuda" else torch.bfloat16

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.amp.autocast(self._device_type, dtype=self._dtype):
            output = self._forward(*args, **kwargs)
        return _device.mapped(output, _in_float32)


def _in_float32(value: Any) -> Any:
    halved = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if halved else value


def unscale(scaler: Any, optimizer: Optimizer) -> None:
    """``scaler.unscale_(optimizer)``, unless the caller has done it."""
    try:
        scaler.unscale_(optimizer)
    except RuntimeError as error:
        if "already been called" not in str(error):
            raise
